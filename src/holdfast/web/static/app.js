// The page: who may see it, which part of it is shown, and the keys.
import { $, Refused, closing, dialog, get, h, post, problem, saved, toast } from "./base.js";
import { showCompare } from "./compare.js";
import { showList } from "./list.js";
import { showRun } from "./run.js";

const KEYS = [
  ["/", "filter the runs"], ["j  k", "next, previous run"], ["Enter", "open it"], ["x", "select it"],
    ["c", "compare the selected"],
  ["g", "back to the list"], ["s  e  t", "along steps, epochs, time"], ["l", "log scale of the loss"], ["0", "whole run"],
  ["1 – 9", "tabs"], ["d", "light or dark"], ["?", "these keys"],
];
let shown = { close() {} };
export let me = null;

async function signIn() {
  const match = location.hash.match(/^#token=([\x21-\x7e]+)$/);
  if (!match) return;
  history.replaceState(null, "", location.pathname); // at once: the token is not kept in the address, nor in the history
  await post("login", { token: match[1] });
}

async function start() {
  try {
    await signIn();
    me = saved ? { name: "", may_act: false } : await get("me");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    askForToken(error.status === 401 && !error.message.includes("needs a token") ? error : null);
    return;
  }
  $("login").hidden = true;
  $("main").hidden = false;
  if (saved && !location.hash.startsWith("#/run/")) history.replaceState(null, "", `#/run/${encodeURIComponent(saved.id)}`);
  route();
}

function askForToken(error) {
  shown.close();
  shown = { close() {} };
  $("main").hidden = true;
  $("main").replaceChildren();
  $("login").hidden = false;
  $("login-problem").textContent = error ? error.message : "";
  $("token").focus();
}

function route() {
  const [kind, ...names] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  if (shown.stays && shown.stays(kind, names)) return;
  shown.close();
  setCrumbs(kind === "run" ? [names[0]] : kind === "compare" ? ["compare"] : []);
  const main = $("main");
  main.replaceChildren();
  main.className = kind || "list";
  if (kind === "run") shown = showRun(main, names[0], names[1], me);
  else if (kind === "compare") shown = showCompare(main, names);
  else shown = showList(main);
}

function setCrumbs(names) {
  $("crumbs").replaceChildren(saved ? "" : h("a", { href: "#/" }, "Runs"), ...names.map((name) => h("span", {}, " / ", h("b", {}, name))));
  document.title = names.length ? `${names[0]} · Holdfast` : "Holdfast";
}

function switchTheme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  if (shown.themed) shown.themed();
}

function help() {
  dialog("Keys", h("dl", { class: "keys" }, KEYS.map(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)])),
    closing());
}

addEventListener("hashchange", () => (location.hash.startsWith("#token=") ? start() : me && route()));
addEventListener("signed-out", () => askForToken(null));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.themed && shown.themed());
$("theme").addEventListener("click", switchTheme);
$("help").addEventListener("click", help);
$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await post("login", { token: $("token").value.trim() });
    $("token").value = "";
    await start();
  } catch (error) {
    $("login-problem").textContent = `${error.message} ${error.fix || ""}`;
  }
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !me || $("dialog").open) return;
  if (event.target.matches("input:not([type=checkbox]):not([type=range]), textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "?") help();
  else if (event.key === "d") switchTheme();
  else if (event.key === "g" && !saved) location.hash = "#/";
  else if (!(shown.key && shown.key(event.key))) return;
  event.preventDefault();
});
addEventListener("unhandledrejection", (event) => {
  if (event.reason instanceof Refused && event.reason.status !== 401) toast(problem(event.reason), "bad");
});

start();
