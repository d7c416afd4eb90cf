// One run, live: the head, the curves with what happened on them, and the tabs.
import { bytes, clock, closing, dialog, duration, get, h, health, live, num, percent, post, problem, quoted, rate,
  toast } from "./base.js";
import { connected, metric } from "./list.js";
import { FORMATS, Plot, xWords } from "./plots.js";
import { TABS, why } from "./tabs.js";

const PLOTS = [
  { key: "loss", title: "Loss", large: true, curves: ["loss"], evaluations: (name) => /loss/i.test(name) },
  { key: "evaluations", title: "Evaluations", evaluations: (name) => !/loss/i.test(name) },
  { key: "grad_norm", title: "Gradient norm", curves: ["grad_norm"] },
  { key: "lr", title: "Learning rate", curves: ["lr"], linear: true },
  { key: "time", title: "Step time", curves: ["step_seconds", "data_seconds"], format: FORMATS.seconds, linear: true },
  { key: "memory", title: "Memory", curves: ["host_rss", "gpu_allocated"], format: FORMATS.bytes, linear: true },
  { key: "gpu", title: "GPU utilisation", curves: ["gpu"], format: FORMATS.percent },
];
const NAMES = { loss: "train loss", grad_norm: "norm", lr: "LR", step_seconds: "step", data_seconds: "waiting for data",
  host_rss: "host", gpu_allocated: "GPU", gpu: "GPU" };
const WINDOWS = [0, 5, 10, 20, 50, 100, 200, 500, 1000];
const MOST_POINTS = 2600;
const kept = { along: "step", smooth: 0 };

export function showRun(main, id, tab, me) {
  let row = null, events = [], data = null, range = null, source = null, closed = false, timer = null, counts = "";
  let rows = 0, busy = false, again = false, queued = false;
  const head = h("div", { class: "head" });
  const facts = h("dl", { class: "facts" });
  const place = h("span", { class: "place soft" });
  const grid = h("div", { class: "plots" });
  const strip = h("div", { class: "strip", "aria-label": "What happened" });
  const pane = h("section", { class: "pane" });
  const tabs = h("nav", { class: "tabs", "aria-label": "About this run" });
  const shared = {
    get along() { return kept.along; }, get range() { return range; },
    marks: () => events.filter((one) => one.kind !== "diagnosis" && one.kind !== "eval"),
    zoom: (to) => { range = to; fetchCurves(); }, open: openMarks,
      crosshair: (x) => { place.textContent = xWords(kept.along, x); },
  };
  const plots = PLOTS.map((spec) => new Plot(spec, shared));
  const axes = h("div", { class: "segments", role: "group", "aria-label": "Along" });
  const reset = h("button", { class: "quiet", onclick: () => shared.zoom(null), title: "Show the whole run (0)" }, "whole run");
  const smooth = h("input", { type: "range", min: "0", max: String(WINDOWS.length - 1),
    value: String(WINDOWS.indexOf(kept.smooth)), "aria-label": "Smoothing", oninput: () => {
    kept.smooth = WINDOWS[Number(smooth.value)];
    smoothWords.textContent = kept.smooth ? `mean of ${kept.smooth} steps` : "no smoothing";
    clearTimeout(timer);
    timer = setTimeout(fetchCurves, 120);
  } });
  const smoothWords = h("span", { class: "soft words" }, kept.smooth ? `mean of ${kept.smooth} steps` : "no smoothing");
  grid.append(...plots.map((one) => one.element));
  main.append(head, facts, h("div", { class: "tools" }, axes, h("label", { class: "smooth" }, smooth, smoothWords), reset,
    h("span", { class: "grow" }), place), grid, strip, tabs, pane);

  function setAlong(along) {
    kept.along = along;
    range = null;
    drawAxes();
    fetchCurves();
    follow();
  }
  function drawAxes() {
    axes.replaceChildren(...["step", "epoch", "time"].map((one) => h("button",
      { "aria-pressed": String(kept.along === one), onclick: () => setAlong(one) }, one)));
  }
  async function fetchCurves() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const points = Math.max(300, Math.min(1600, Math.round(grid.clientWidth * 1.2)));
      const answer = await get("curves", { run: id, along: kept.along, smooth: kept.smooth || null, points,
        from: range ? range[0] : null, to: range ? range[1] : null });
      if (closed || answer.along !== kept.along) return;
      data = answer;
      rows = answer.rows;
      (answer.marks || []).forEach((x, at) => { if (events[at]) events[at].x = x; });
      draw();
    } catch (error) {
      toast(problem(error), "bad");
    } finally {
      busy = false;
      if (again) { again = false; fetchCurves(); }
    }
  }
  function draw() {
    if (!data || queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      if (closed) return;
      for (const plot of plots) plot.show(linesOf(plot.spec));
      reset.hidden = !range;
      place.textContent = "";
    });
  }
  function linesOf(spec) {
    const lines = [];
    for (const key of spec.curves || []) {
      const one = data.curves[key];
      if (!one) continue;
      const name = NAMES[key] || key, colour = `c${lines.length + 1}`;
      lines.push({ name, colour, x: one.x, y: one.y, bad: one.bad, faint: Boolean(one.smooth_x) });
      if (one.smooth_x) lines.push({ name: `${name} (mean)`, of: name, colour, x: one.smooth_x, y: one.smooth_y });
    }
    for (const [name, one] of Object.entries(data.evaluations)) if (spec.evaluations && spec.evaluations(name)
      && lines.length < 6) lines.push({ name, colour: `c${lines.filter((line) => !line.of).length + 1}`, x: one.x, y: one.y,
      bad: one.bad, dash: spec.key === "loss" ? [5, 3] : undefined });
    return lines;
  }
  function follow() {
    if (source) source.close();
    source = live(() => ({ run: id, along: kept.along, after: rows, marks: events.length }), take, connected);
  }
  function take(news) {
    row = news.row;
    drawHead();
    for (const mark of news.marks) { mark.x = kept.along === "time" ? mark.time : kept.along === "step" ? mark.step
      : null; events.push(mark); }
    if (news.marks.length) drawStrip();
    const before = counts;
    counts = JSON.stringify(news.evaluations);
    if (news.points.along !== kept.along || !data) return;
    const fresh = Object.keys(news.points.curves).length > 0;
    const grown = Math.max(0, ...Object.values(data.curves).map((one) => one.x.length)) > MOST_POINTS;
    const rolledBack = Object.entries(news.points.curves).some(([key, one]) => data.curves[key]
      && one.x[0] <= data.curves[key].x[data.curves[key].x.length - 1]);
    const unknown = Object.keys(news.points.curves).some((key) => !data.curves[key]);
    if ((before && counts !== before) || (kept.smooth && fresh) || grown || rolledBack || unknown
      || (news.marks.length && kept.along === "epoch")) fetchCurves();
    else if (fresh && !range) append(news.points.curves);
    rows = Math.max(rows, news.points.rows);
    if (fresh || news.marks.length) draw();
  }
  function append(curves) {
    for (const [key, one] of Object.entries(curves)) {
      const held = data.curves[key];
      held.x.push(...one.x);
      held.y.push(...one.y);
      held.bad.push(...one.bad);
    }
  }
  function drawHead() {
    const parts = [h("h1", {}, row.name), health(row)];
    if (row.reason) parts.push(h("span", { class: "soft" }, row.reason));
    const buttons = me.may_act && row.alive ? [button("Set…", () => confirmSet(id, row)),
      button("Save", () => confirmAct(id, row, { do: "save" })), button("Roll back…", () => confirmRollback(id, row)),
      row.health === "paused" ? button("Continue", () => confirmAct(id, row, { do: "continue" }))
      : button("Pause", () => confirmAct(id, row, { do: "pause" }))] : [];
    head.replaceChildren(h("div", { class: "title" }, parts), h("div", { class: "buttons" }, buttons));
    const epoch = row.epoch === null ? null : row.epochs ? `${row.epoch + 1} of ${row.epochs}` : String(row.epoch + 1);
    const shown = [
      ["Step", num(row.step)], ["Epoch", epoch], [row.alive ? "ETA" : "Took",
        row.alive ? (row.eta === null ? null : duration(row.eta)) : row.ended && row.started ? duration(row.ended - row.started)
        : null],
      ["Loss", num(row.loss), typeof row.loss === "string" ? "bad" : ""],
        [row.evaluation ? metric(row.evaluation) : "Evaluation", row.evaluation ? num(row.evaluation.value) : null],
      ["Gradient norm", num(row.grad_norm)], ["LR", num(row.lr)], ["Speed", row.alive ? rate(row.rate) : null],
        ["Data wait", percent(row.data_share)],
      ["Memory", bytes(row.gpu_memory ?? row.host_memory)], ["GPU", row.gpu === null ? null : percent(row.gpu)],
        ["Holdfast's cost", percent(row.budget)], ["Policy", row.policy],
    ];
    facts.replaceChildren(...shown.filter(([, value]) => value !== null
      && value !== "–").map(([name, value, tone]) => h("div", {}, h("dt", {}, name), h("dd", { class: tone || "" }, value))));
  }
  const button = (words, act) => h("button", { onclick: act }, words);
  function drawStrip() {
    const notable = events.filter((one) => one.tone !== "info" || one.kind === "action" || one.kind === "change");
    const last = notable.slice(-6).reverse();
    strip.replaceChildren(...last.map((mark) => h("button", { class: `event ${mark.tone}`, onclick: () => openMarks([mark]) },
      h("i", { class: "glyph", "aria-hidden": "true" }, { finding: "▲", action: "●", change: "◆" }[mark.kind] || "▪"),
        mark.step !== null ? h("span", { class: "soft" }, `step ${num(mark.step)}`) : null, h("span", {}, mark.words))),
      notable.length > last.length ? h("a", { class: "more", href: `#/run/${encodeURIComponent(id)}/journal` },
        `${notable.length - last.length} earlier, in the journal`) : "");
  }
  async function openMarks(marks) {
    const body = h("div", { class: "events" });
    dialog(marks.length === 1 ? title(marks[0]) : `${marks.length} events`, body, closing());
    for (const mark of marks.slice(0, 30)) {
      body.append(h("article", {}, marks.length > 1 ? h("h3", {}, title(mark)) : "", h("p", {}, mark.words),
        h("p", { class: "soft" }, [mark.step === null ? null : `step ${num(mark.step)}`, mark.time ? clock(mark.time) : null,
        mark.ranks.length ? `rank ${mark.ranks.join(", ")}` : null].filter(Boolean).join(" · "))));
    }
    const change = marks.find((one) => typeof one.undo === "number");
    if (change && me.may_act && row.alive) body.append(button("Undo it…",
      () => confirmAct(id, row, { do: "undo", number: change.undo })));
    const finding = marks.find((one) => one.kind === "finding");
    if (finding) body.append(await why(id, finding).catch((error) => problem(error)));
  }
  const title = (mark) => `${mark.kind === "finding" ? mark.word : mark.kind}${mark.code !== "unknown" ? `: ${mark.code.replaceAll("-", " ")}` : ""}`;

  function showTab(name = "diagnosis") {
    tab = name;
    tabs.replaceChildren(...Object.keys(TABS).map((one, at) => h("a",
      { href: `#/run/${encodeURIComponent(id)}/${one}`, "aria-current": one === name ? "page" : null, title: `${at + 1}` },
      one)));
    pane.className = `pane ${name}`;
    TABS[name](pane, id, () => row, me.may_act && ((to) => confirmRollback(id, row, to)));
  }
  async function begin() {
    try {
      const answer = await get("run", { run: id });
      row = answer.row;
      events = answer.marks.map((mark) => ({ ...mark, x: mark.step }));
    } catch (error) {
      main.replaceChildren(problem(error), h("p", {}, h("a", { href: "#/" }, "All runs")));
      return;
    }
    if (closed) return;
    if (kept.along === "time") events.forEach((mark) => { mark.x = mark.time; });
    drawHead();
    drawAxes();
    drawStrip();
    showTab(tab);
    await fetchCurves();
    if (!closed) follow();
  }
  begin();
  return {
    close() { closed = true; if (source) source.close(); clearTimeout(timer); plots.forEach((one) => one.close()); },
    stays(kind, names) {
      if (kind !== "run" || names[0] !== id || !row) return false;
      showTab(names[1]);
      return true;
    },
    themed: () => plots.forEach((one) => one.redraw()),
    key(key) {
      const named = Object.keys(TABS)[Number(key) - 1];
      if (key === "s" || key === "e" || key === "t") setAlong({ s: "step", e: "epoch", t: "time" }[key]);
      else if (key === "0") shared.zoom(null);
      else if (key === "l") plots[0].switchLog();
      else if (named) location.hash = `#/run/${encodeURIComponent(id)}/${named}`;
      else return false;
      return true;
    },
  };
}

function commandOf(row, body) {
  const words = ["holdfast", body.do, row.name, ...({ set: [body.text], undo: [String(body.number)],
    rollback: body.to ? ["--to", body.to] : [] }[body.do] || [])];
  return words.map(quoted).join(" ");
}

function confirmWith(id, row, name, value, hint, request) {
  const what = h("input", { id: "setting", value, spellcheck: "false", autocomplete: "off" });
  confirmAct(id, row, () => request(what.value.trim()),
    [h("label", { for: "setting" }, name), what, h("p", { class: "soft" }, hint)], what);
}
const confirmSet = (id, row) => confirmWith(id, row, "Setting", `lr=${num(row.lr).replaceAll(",", "")}`,
  "lr=1e-4, lr*=0.1, weight_decay=0, clip=1.0, clip=off", (text) => ({ do: "set", text }));
const confirmRollback = (id, row, to = "") => confirmWith(id, row, "Checkpoint", to, "A step, a name from the checkpoints tab, or best; "
  + "empty: the newest clean one. Save first to keep the state of now: a rollback cannot be undone otherwise.",
  (text) => ({ do: "rollback", to: text || null }));

function confirmAct(id, row, request, more = [], input = null) {
  const body = () => (typeof request === "function" ? request() : request);
  const shown = h("code", { class: "command" }, commandOf(row, body()));
  const outcome = h("div", { class: "outcome", role: "status" });
  const go = h("button", { class: "strong", type: "submit" }, "Do it");
  const form = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    outcome.textContent = "Waiting for the next step…";
    try {
      const answer = await post("act", body(), { run: id });
      const first = answer.answers[0] || {};
      outcome.replaceChildren(h("p", { class: answer.ok ? "ok" : "bad" },
        answer.ok ? `Done${first.step !== undefined ? ` at step ${num(first.step)}` : ""}. ${first.value || ""}` : first.error
        || "It was refused."));
      if (answer.ok) go.remove();
    } catch (error) {
      outcome.replaceChildren(problem(error));
    } finally {
      go.disabled = false;
    }
  } }, more, h("p", {}, "This equals"), shown, h("p", { class: "soft" },
    "It happens between two steps, on every rank at the same step, and is in the journal with your name."), outcome,
    h("div", { class: "buttons" }, go, closing("Close")));
  if (input) input.addEventListener("input", () => { shown.textContent = commandOf(row, body()); });
  dialog(`Change ${row.name}`, form);
  (input || go).focus();
}
