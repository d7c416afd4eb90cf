// What every part of the page uses: elements, numbers as people read them, and asking the server.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const $ = (id) => document.getElementById(id);
const DASH = "–";

export function num(value) {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "string") return value; // "nan", "inf": JSON has no such numbers
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  return size < 1e4 ? String(Number(value.toPrecision(4))) : Math.round(value).toLocaleString("en-US");
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (Math.abs(value) >= 1000 && power < 4) (value /= 1024), power++;
  return `${value < 1000 ? Number(value.toPrecision(3)) : Math.round(value)} ${units[power]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds > 0 && seconds < 0.0995) return seconds >= 1e-3 ? `${Number((seconds * 1e3).toPrecision(3))} ms`
    : `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds), days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24,
    minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

export const percent = (value) => (value === null || value === undefined ? DASH : value < 0.0995
  ? `${(value * 100).toFixed(1)} %` : `${Math.round(value * 100)} %`);
export const rate = (value) => (value === null || value === undefined ? DASH : value >= 1
  ? `${num(Number(value.toPrecision(3)))}/s` : `${num(Number((1 / value).toPrecision(3)))} s each`);
export const clock = (time) => (time ? new Date(time * 1000).toLocaleString([],
  { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false }) : DASH);
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`); // as a shell wants it
export const SIGNS = { ok: "●", warn: "▲", bad: "■", over: "○", info: "◆" }; // a shape for each colour: not everybody sees both

export function health(row) {
  return h("span", { class: `health ${row.tone}`, title: row.reason || row.health },
    h("i", { "aria-hidden": "true" }, SIGNS[row.tone]), row.health);
}

export class Refused extends Error {
  constructor(status, answer) {
    super(answer.error || `HTTP ${status}`);
    this.status = status;
    this.fix = answer.fix || "";
  }
}

export const saved = globalThis.HOLDFAST; // a page in a file brings its answers along

function fromFile(path) {
  const asked = new URL(path, "http://file"), words = ["along", "tab", "what"].map((name) => asked.searchParams.get(name));
  const answer = saved.answers[[asked.pathname.replace("/api/", ""), ...words].filter(Boolean).join(" ")];
  if (!answer) throw new Refused(404, { error: "This page is a file.", fix: `the whole of it: holdfast ui -t ${saved.id}` });
  return structuredClone(answer);
}

async function ask(path, options) {
  if (saved) return fromFile(path);
  const response = await fetch(path, { credentials: "same-origin", ...options });
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 401 && path !== "/api/login") dispatchEvent(new CustomEvent("signed-out"));
  throw new Refused(response.status, answer);
}

const query = (options) => new URLSearchParams(Object.entries(options).filter(([, value]) => value !== null
  && value !== undefined));
export const get = (path, options = {}) => ask(`/api/${path}?${query(options)}`, {});
export const post = (path, body, options = {}) =>
  ask(`/api/${path}?${query(options)}`, { method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body) });

export function live(options, onNews, onState) {
  // EventSource comes again by itself after an answer that ended, but not after one that was refused. A page that nobody sees
  // holds no connection: a browser has only six for a server.
  let source = null, timer = null, closed = false;
  const open = () => {
    if (closed || source || document.hidden || saved) return;
    source = new EventSource(`/api/live?${query(typeof options === "function" ? options() : options)}`);
    source.onopen = () => onState(true);
    source.onmessage = (event) => onNews(JSON.parse(event.data));
    source.onerror = () => {
      leave();
      onState(false);
      timer = setTimeout(async () => {
        const there = await fetch("/api/me", { credentials: "same-origin" }).catch(() => null);
        if (there && there.status === 401) dispatchEvent(new CustomEvent("signed-out"));
        open();
      }, 700);
    };
  };
  const leave = () => { clearTimeout(timer); if (source) source.close(); source = null; };
  const seen = () => (document.hidden ? leave() : open());
  document.addEventListener("visibilitychange", seen);
  open();
  return { close: () => { closed = true; leave(); document.removeEventListener("visibilitychange", seen); } };
}

export function toast(words, tone = "info") {
  const box = $("toast");
  box.replaceChildren(h("div", { class: tone }, words));
  clearTimeout(box.timer);
  box.timer = setTimeout(() => box.replaceChildren(), 6000);
}

export function problem(error) {
  return h("p", { class: "problem" }, error.message, error.fix ? [h("br"), h("span", { class: "soft" }, `fix: ${error.fix}`)]
    : null);
}

export function dialog(title, ...content) {
  const box = $("dialog");
  box.replaceChildren(h("h2", { id: "dialog-title" }, title), ...content.flat(9).filter(Boolean));
  if (!box.open) box.showModal();
  return box;
}
export const closing = (words = "Close") => h("button", { type: "button", onclick: () => $("dialog").close() }, words);

export function spark(values) {
  const known = values.filter((one) => one !== null);
  const box = svg("svg", { class: "spark", viewBox: "0 0 96 22", "aria-hidden": "true", preserveAspectRatio: "none" });
  if (known.length < 2) return box;
  const low = Math.min(...known), span = Math.max(...known) - low || 1;
  const points = values.map((one, at) => (one === null ? null
    : `${((at / (values.length - 1)) * 94 + 1).toFixed(1)},${(20 - ((one - low) / span) * 18).toFixed(1)}`));
  box.append(svg("polyline", { points: points.filter(Boolean).join(" ") }));
  values.forEach((one, at) => one === null && box.append(svg("path",
    { class: "gap", d: `M${((at / (values.length - 1)) * 94 + 1).toFixed(1)} 2v18` })));
  return box;
}
