// The list of runs: filter, sort, select several to compare. A row is drawn again only when it changed.
import { $, bytes, clock, duration, h, health, live, num, percent, rate, spark } from "./base.js";

const COLUMNS = [
  ["select", "", null],
  ["health", "Health", (row) => ["bad", "warn", "ok", "over"].indexOf(row.tone)],
  ["name", "Run", (row) => row.name],
  ["step", "Step", (row) => -(row.step ?? -1)],
  ["epoch", "Epoch", (row) => -(row.epoch ?? -1)],
  ["eta", "ETA", (row) => row.eta ?? Infinity],
  ["loss", "Loss", (row) => (typeof row.loss === "number" ? row.loss : Infinity)],
  ["spark", "", null],
  ["metric", "Evaluation", (row) => -(row.evaluation ? row.evaluation.value : -Infinity)],
  ["lr", "LR", (row) => -(row.lr ?? 0)],
  ["rate", "Speed", (row) => -(row.rate ?? 0)],
  ["data", "Data wait", (row) => -(row.data_share ?? 0)],
  ["gpu", "GPU", (row) => -(row.gpu ?? 0)],
  ["memory", "Memory", (row) => -(row.gpu_memory ?? row.host_memory ?? 0)],
  ["action", "Last action", (row) => -(row.action ? row.action.time : 0)],
  ["started", "Started", (row) => -(row.started ?? 0)],
];
const SHOWN = { all: () => true, live: (row) => row.alive, problems: (row) => row.tone === "bad" || row.tone === "warn",
  finished: (row) => !row.alive };
const OPTIONAL = [["gpu", (row) => row.gpu !== null], ["eta", (row) => row.alive && row.eta !== null],
  ["metric", (row) => row.evaluation], ["action", (row) => row.action],
  ["rate", (row) => row.alive]]; // shown if any run has it
const kept = { text: "", shown: "all", by: null, down: false, selected: new Set() };

export function showList(main) {
  let rows = [], problems = [], at = 0;
  const drawn = new Map(); // id -> [row as text, element]
  const filter = h("input", { id: "filter", type: "search", placeholder: "Filter: name, machine, health, command",
    "aria-label": "Filter the runs", value: kept.text,
    oninput: () => { kept.text = filter.value; draw(); } });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Which runs" });
  const head = h("tr");
  const body = h("tbody");
  const note = h("div", { class: "note" });
  const tray = h("div", { class: "tray", hidden: true });
  main.append(h("div", { class: "tools" }, filter, chips, h("span", { class: "grow" })), note,
    h("div", { class: "scroll" }, h("table", { class: "runs" }, h("thead", {}, head), body)), tray);

  function drawHead() {
    head.replaceChildren(...COLUMNS.map(([name, title, by]) => h("th",
      { class: name, scope: "col", "aria-sort": kept.by === name ? (kept.down ? "descending" : "ascending") : null },
      by ? h("button", { class: "sort", onclick: () => { kept.down = kept.by === name
        && !kept.down; kept.by = name; draw(); } }, title, kept.by === name ? (kept.down ? " ↓" : " ↑") : "") : title)));
  }
  function matching() {
    const words = kept.text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => SHOWN[kept.shown](row)
      && words.every((word) => `${row.id} ${row.host} ${row.health} ${row.command}`.toLowerCase().includes(word)));
    const by = COLUMNS.find(([name]) => name === kept.by);
    const order = by ? by[2] : (row) => (row.alive ? 0 : 1) * 1e12 - (row.started || 0);
    return found.sort((a, b) => { const [x, y] = [order(a),
      order(b)]; return (x < y ? -1 : x > y ? 1 : 0) * (kept.down ? -1 : 1); });
  }
  function draw() {
    drawHead();
    chips.replaceChildren(...Object.entries(SHOWN).map(([name, test]) => h("button",
      { "aria-pressed": String(kept.shown === name), onclick: () => { kept.shown = name; draw(); } },
      name, h("span", { class: "count" }, String(rows.filter(test).length)))));
    const found = matching();
    at = Math.max(0, Math.min(at, found.length - 1));
    const focused = document.activeElement && document.activeElement.closest("tr")
      ? document.activeElement.closest("tr").dataset.id : null;
    body.parentNode.className = `runs ${OPTIONAL.filter(([, has]) => !rows.some(has)).map(([name]) => `no-${name}`).join(" ")}`;
    const wanted = found.map((row) => element(row));
    if (wanted.length !== body.children.length || wanted.some((one,
      place) => body.children[place] !== one)) body.replaceChildren(...wanted);
    if (focused && drawn.has(focused)) drawn.get(focused)[1].querySelector("a").focus({ preventScroll: true });
    note.replaceChildren(...problems.map((words) => h("p", { class: "problem" }, words)), ...(found.length ? [] : [nothing()]));
    drawTray();
  }
  const nothing = () => h("p", { class: "empty" }, rows.length ? "No run matches."
    : ["No run yet. Start one: ", h("code", {}, "holdfast run -- python train.py")]);
  function element(row) {
    const { age, ...lasting } = row;
    const text = JSON.stringify(lasting) + kept.selected.has(row.id);
    const before = drawn.get(row.id);
    if (before && before[0] === text) return before[1];
    const made = line(row);
    if (before && before[1].parentNode) before[1].replaceWith(made);
    drawn.set(row.id, [text, made]);
    return made;
  }
  function line(row) {
    const box = h("input", { type: "checkbox", "aria-label": `Select ${row.name}`, checked: kept.selected.has(row.id),
      onchange: () => choose(row.id, box.checked) });
    const epochs = row.epoch === null ? "–" : row.epochs ? `${row.epoch + 1} of ${row.epochs}` : String(row.epoch + 1);
    const cells = {
      select: box,
      health: health(row),
      name: h("a", { href: `#/run/${encodeURIComponent(row.id)}` }, row.name,
        row.far ? h("span", { class: "soft" }, ` ${row.host}`) : null,
        row.ranks > 1 ? h("span", { class: "soft" }, ` × ${row.ranks}`) : null),
      step: num(row.step), epoch: epochs, eta: row.alive ? duration(row.eta) : "–",
        loss: h("span", { class: typeof row.loss === "string" ? "bad" : "" }, num(row.loss)),
      spark: spark(row.spark), metric: row.evaluation ? [h("span", { class: "soft" }, `${metric(row.evaluation)} `),
        num(row.evaluation.value)] : "–",
      lr: num(row.lr), rate: rate(row.alive ? row.rate : null), data: percent(row.data_share), gpu: percent(row.gpu),
      memory: bytes(row.gpu_memory ?? row.host_memory), action: row.action
        ? h("span", { title: row.action.words }, row.action.words) : "–", started: clock(row.started),
    };
    return h("tr", { "data-id": row.id, class: row.alive ? "alive" : "", onclick: (event) => {
      if (!event.target.closest("a, input, button")
        && !String(getSelection())) location.hash = `#/run/${encodeURIComponent(row.id)}`;
    } }, COLUMNS.map(([name, title]) => h("td", { class: name, "data-title": title }, cells[name])));
  }
  function choose(id, on) {
    if (on) kept.selected.add(id); else kept.selected.delete(id);
    draw();
  }
  function drawTray() {
    const there = [...kept.selected].filter((id) => rows.some((row) => row.id === id));
    tray.hidden = !there.length;
    tray.replaceChildren(h("span", {}, `${there.length} selected`),
      h("button", { class: "strong", disabled: there.length < 2, onclick: compare }, "Compare"),
      h("button", { onclick: () => { kept.selected.clear(); draw(); } }, "Clear"));
  }
  function compare() {
    if (kept.selected.size > 1) location.hash = `#/compare/${[...kept.selected].map(encodeURIComponent).join("/")}`;
  }
  const source = live({}, (news) => { ({ runs: rows, problems } = news); draw(); }, connected);
  draw();
  return {
    close: () => source.close(),
    key(key) {
      const lines = [...body.children];
      if (key === "/") filter.focus();
      else if (key === "c") compare();
      else if (key === "j" || key === "k") {
        const now = lines.findIndex((one) => one.contains(document.activeElement));
        at = now < 0 ? 0 : Math.max(0, Math.min(lines.length - 1, now + (key === "j" ? 1 : -1)));
        if (lines[at]) lines[at].querySelector("a").focus();
      } else if (key === "x") {
        const one = document.activeElement && document.activeElement.closest("tr[data-id]");
        if (one) choose(one.dataset.id, !kept.selected.has(one.dataset.id));
      } else return false;
      return true;
    },
  };
}

export const metric = (one) => (one.name.toLowerCase().startsWith(one.split.toLowerCase()) ? one.name
  : `${one.split} ${one.name}`);

export function connected(is) {
  const sign = $("link");
  sign.className = `link ${is ? "on" : "off"}`;
  sign.textContent = is ? "live" : "not connected, trying again";
}
