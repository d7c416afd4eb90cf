// Selected runs beside each other: the verdict in words, their curves, and the settings that differ.
import { duration, get, h, num, problem } from "./base.js";
import { connected } from "./list.js";
import { FORMATS, Plot, SERIES, xWords } from "./plots.js";

const CURVES = [["loss", "Loss", true], ["grad_norm", "Gradient norm"], ["lr", "Learning rate"], ["step_seconds", "Step time"]];

export function showCompare(main, ids) {
  let along = "step", range = null, closed = false, answers = [];
  const place = h("span", { class: "place soft" });
  const axes = h("div", { class: "segments", role: "group", "aria-label": "Along" });
  const verdict = h("section", { class: "verdicts" }, h("p", { class: "soft" }, "Comparing…"));
  const grid = h("div", { class: "plots" });
  const shared = { get along() { return along; }, get range() { return range; }, marks: () => [],
    zoom: (to) => { range = to; load(); }, open() {}, crosshair: (x) => { place.textContent = xWords(along, x); } };
  const plots = CURVES.map(([key, title, large]) => new Plot({ key, title, large, curves: [key],
    linear: !["loss", "grad_norm"].includes(key), format: key === "step_seconds" ? FORMATS.seconds : undefined }, shared));
  const evaluations = new Map();
  grid.append(...plots.map((one) => one.element));
  main.append(h("h1", {}, `${ids.length} runs`), verdict, h("div", { class: "tools" }, axes, h("span", { class: "grow" }),
    place), grid);

  function drawAxes() {
    axes.replaceChildren(...["step", "epoch", "time"].map((one) => h("button",
      { "aria-pressed": String(along === one), onclick: () => { along = one; range = null; drawAxes(); load(); } }, one)));
  }
  async function load() {
    const options = { along, points: 700, from: range ? range[0] : null, to: range ? range[1] : null };
    answers = await Promise.all(ids.map((id) => get("curves", { run: id, ...options }).catch(() => null)));
    if (!closed) draw();
  }
  const line = (name, at, one) => ({ name, colour: SERIES[at % SERIES.length], dash: at >= SERIES.length ? [5, 3] : undefined,
    x: one.x, y: one.y, bad: one.bad });
  function draw() {
    plots.forEach((plot) => plot.show(ids.flatMap((id, at) => (answers[at] && answers[at].curves[plot.spec.key]
      ? [line(id, at, answers[at].curves[plot.spec.key])] : []))));
    for (const name of new Set(answers.flatMap((one) => (one ? Object.keys(one.evaluations) : [])))) {
      if (!evaluations.has(name) && evaluations.size < 6) {
        evaluations.set(name, new Plot({ key: name, title: name }, shared));
        grid.append(evaluations.get(name).element);
      }
      if (evaluations.has(name)) evaluations.get(name).show(ids.flatMap((id,
        at) => (answers[at] && answers[at].evaluations[name] ? [line(id, at, answers[at].evaluations[name])] : [])));
    }
  }
  async function judge() {
    const options = new URLSearchParams(ids.map((id) => ["run", id]));
    const response = await fetch(`/api/compare?${options}`, { credentials: "same-origin" });
    const answer = await response.json();
    if (!response.ok) throw Object.assign(new Error(answer.error), answer);
    const unit = Object.keys(answer.at)[0];
    const runs = answer.runs.map((one) => h("tr", {}, [one.name, `${num(one.best)} (${unit} ${num(one.best_at)})`,
      num(one.last), num(one.value), duration(one.seconds)].map((cell, at) => h("td", { class: at ? "number" : "" }, cell))));
    const settings = Object.entries(answer.settings);
    verdict.replaceChildren(h("h2", {}, answer.metric, h("span", { class: "soft" }, ` ${answer.better} is better`)),
      ...answer.differences.map((gap) => h("p", { class: `verdict ${{ true: "ok", false: "bad" }[gap.is_better] || "over"}` },
        gap.words)),
      h("div", { class: "scroll" }, h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, ["Run", "Best", "Last", `At ${unit} ${num(answer.at[unit])}`,
        "Time"].map((one, at) => h("th", { class: at ? "number" : "" }, one)))), h("tbody", {}, runs))),
      ...(settings.length ? [h("h2", {}, "Settings that differ"),
        h("div", { class: "scroll" }, h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, ["", ...answer.runs.map((one) => one.name)].map((one) => h("th", {}, one)))),
        h("tbody", {}, settings.map(([name, values]) => h("tr", {}, h("td", {}, h("code", {}, name)),
          values.map((value) => h("td", {}, value === null ? "–" : String(value))))))))] : []));
  }
  drawAxes();
  load();
  judge().catch((error) => verdict.replaceChildren(problem(error)));
  connected(true);
  return { close() { closed = true; [...plots, ...evaluations.values()].forEach((one) => one.close()); },
    themed: () => [...plots, ...evaluations.values()].forEach((one) => one.redraw()) };
}
