// The tabs under the curves: diagnosis, journal, parameters, modules, ranks, stacks, checkpoints, data, environment.
import { bytes, clock, duration, get, h, num, percent, post, problem, quoted, rate } from "./base.js";

const VERDICTS = { healthy: ["ok", "● healthy"], watch: ["warn", "▲ worth a look"], ill: ["bad", "■ something is wrong"],
  "too-short": ["over", "○ too short to tell"] };

function loading(pane, id, load, draw) {
  const mine = (pane.mine = {}); // a newer tab may have taken the place
  pane.replaceChildren(h("p", { class: "soft" }, "Reading…"));
  load().then((answer) => pane.mine === mine && pane.replaceChildren(...[draw(answer)].flat()),
    (error) => pane.mine === mine && pane.replaceChildren(problem(error)));
}
const ofTab = (tab, draw) => (pane, id) => loading(pane, id, () => get("tab", { run: id, tab }), draw);

function table(titles, rows, numeric = []) {
  return h("div", { class: "scroll" }, h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, titles.map((one, at) => h("th", { scope: "col", class: numeric.includes(at) ? "number" : "" },
    one)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, at) => h("td",
      { class: numeric.includes(at) ? "number" : "" }, cell)))))));
}
const empty = (words, ...more) => h("p", { class: "empty" }, words, ...more);

function cause(one) {
  return h("div", { class: "cause" }, h("p", {}, h("b", {}, `${one.sure} cause: ${one.name}`), `. ${one.because}`),
    h("ul", { class: "fixes" }, one.fixes.map((fix) => h("li", {}, h("span", { class: "soft" }, "fix: "), fix.text,
      fix.command ? h("code", { class: "command" }, fix.command) : null))));
}
function diagnosis(answer) {
  const [tone, words] = answer.repaired ? ["warn", "▲ something was wrong; Holdfast repaired it"] : VERDICTS[answer.verdict];
  return [h("p", { class: `verdict ${tone}` }, words, h("span", { class: "soft" }, `  after ${num(answer.steps)} steps`)),
    ...answer.episodes.map((episode) => h("article", { class: "episode" },
    episode.findings.map((one) => h("div", { class: `finding ${{ critical: "bad", warning: "warn" }[one.severity] || "info"}` },
      h("b", {}, one.name), h("span", { class: "soft" }, ` step ${num(one.step)}`), h("br"), one.words)),
    episode.done.map((one) => h("p", { class: "done" }, h("b", {}, "done about it: "), one.words,
      one.times > 1 ? `, ${one.times} times, from step ${num(one.step)} on` : `, at step ${num(one.step)}`)),
    episode.causes.map(cause))), ...(answer.episodes.length ? [] : [empty("Nothing was found.")])];
}

export async function why(id, mark) {
  // what the check-up says of the same finding
  const answer = await get("tab", { run: id, tab: "diagnosis" });
  const found = answer.episodes.filter((episode) => episode.findings.some((one) => one.code === mark.code));
  const causes = found.flatMap((episode) => episode.causes), done = found.flatMap((episode) => episode.done);
  return h("div", {}, causes.length ? [h("h3", {}, "Why, and what to change"), causes.map(cause)] : null,
    done.map((one) => h("p", { class: "done" }, h("b", {}, "done about it: "), one.words)),
    h("p", { class: "soft" }, "More about it: ", h("code", {}, `holdfast explain ${mark.code}`)));
}

const journal = (answer) => answer.events.length ? [table(["Time", "Step", "", "What"],
  answer.events.map((one) => [clock(one.time), one.step === null ? "" : num(one.step),
  h("span", { class: `tag ${one.kind === "checkpoint" ? "over" : one.tone}` }, one.word), one.words]), [1]),
    answer.all > answer.events.length ? h("p", { class: "soft" },
    `The newest ${answer.events.length} of ${num(answer.all)}; all: holdfast journal`) : ""]
  : empty("Nothing has happened yet.");

// A heat map: values on a log scale from light to dark, one hue; what is not finite is crossed out.
function heat(answer, format, unit) {
  const known = answer.lines.flatMap((line) => line.values).filter((one) => typeof one === "number" && one > 0);
  if (!answer.lines.length) return empty("Nothing was sampled yet. A larger budget samples more: ",
    h("code", {}, "holdfast run --budget 5%"));
  const low = Math.log10(Math.min(...known)), span = Math.log10(Math.max(...known)) - low || 1;
  const told = h("p", { class: "soft told" }, "Point at a cell.");
  const style = getComputedStyle(document.documentElement), dark = style.getPropertyValue("--heat-dark").trim(),
    light = style.getPropertyValue("--heat-light").trim(), bad = style.getPropertyValue("--bad").trim();
  const cell = 14, canvas = h("canvas", { width: answer.bins, height: answer.lines.length, role: "img",
    "aria-label": `${unit} by step, one line for each of ${answer.lines.length}` });
  const draw = canvas.getContext("2d");
  answer.lines.forEach((line, y) => {
    let last = null;
    line.values.forEach((value, x) => {
      if (typeof value === "number") last = value; // between two samples the earlier one stands
      if (last === null && value === null) return;
      const share = last > 0 ? (Math.log10(last) - low) / span : 0;
      draw.fillStyle = value === "bad" ? bad : `color-mix(in oklab, ${dark} ${Math.round(share * 100)}%, ${light})`;
      draw.fillRect(x, y, 1, 1);
    });
  });
  const step = (x) => Math.round(answer.low + ((x + 0.5) / answer.bins) * (answer.high - answer.low));
  const box = h("div", { class: "heat", onmousemove: (event) => {
    const at = canvas.getBoundingClientRect(), x = Math.floor(((event.clientX - at.left) / at.width) * answer.bins),
      y = Math.floor(((event.clientY - at.top) / at.height) * answer.lines.length);
    const line = answer.lines[y];
    if (line && x >= 0 && x < answer.bins) told.textContent = `${line.name}, about step ${num(step(x))}: ${line.values[x] === "bad" ? "not finite" : line.values[x] === null ? "not sampled" : format(line.values[x])}`;
  } }, h("ol", { class: "names" }, answer.lines.map((line) => h("li",
    { title: line.name, class: line.values.includes("bad") ? "bad" : "" }, line.name))), h("div", { class: "field" }, canvas));
  canvas.style.height = `${answer.lines.length * cell}px`;
  return [told, box, h("p", { class: "scale soft" }, `steps ${num(answer.low)} to ${num(answer.high)} · `, format(10 ** low),
    h("i", { class: "ramp" }), format(10 ** (low + span)),
    known.length < answer.lines.flatMap((line) => line.values).filter((one) => one !== null).length
    ? [" · ", h("span", { class: "bad" }, "■ not finite")] : "")];
}

const parameters = (answer) => [h("p", { class: "soft" },
  "Gradient norm of each parameter (the largest in each stretch of steps), log scale."),
  heat(answer, num, "gradient norm")].flat();

function modules(answer) {
  if (!answer.modules.length) return empty("No module was timed yet: modules are timed on sampled steps. A larger budget samples more: ", h("code", {}, "holdfast run --budget 5%"));
  const time = (one) => (one.forward || 0) + (one.backward || 0), whole = Math.max(...answer.modules.map(time)) || 1;
  return [h("p", { class: "soft" },
    "Mean time of each module in sampled steps; a module's time includes that of the modules inside it."),
    table(["Module", "Forward", "Backward", "Together", "", "Samples"],
      answer.modules.map((one) => [h("code", {}, one.module), duration(one.forward), duration(one.backward),
      duration(time(one)),
      h("meter", { max: whole, value: time(one), title: percent(time(one) / whole) }), num(one.samples)]), [1, 2, 3, 5])];
}

const rankTab = (pane, id, row, rollBack, what = "step time") => loading(pane, id, () => get("tab", { run: id, tab: "ranks", what }),
  (answer) => [
  h("div", { class: "segments", role: "group", "aria-label": "What of each rank" },
    answer.choices.map((one) => h("button", { "aria-pressed": String(one === answer.what),
    onclick: () => rankTab(pane, id, row, rollBack, one) }, one))),
  heat(answer, answer.what === "loss" ? num : answer.what === "memory" ? bytes : duration, answer.what),
  table(["Rank", "PID", "Step", "Loss", "Speed", "Data wait", "Health"],
    answer.states.map((one) => [String(one.rank), String(one.pid ?? "–"), num(one.step), num(one.loss), rate(one.rate),
    percent(one.data_share), one.health + (one.reason ? `: ${one.reason}` : "")]), [0, 1, 2, 3, 4, 5])].flat());

function stacks(pane, id) {
  pane.mine = {};
  const out = h("div");
  const go = h("button", { class: "strong", onclick: () => {
    go.disabled = true;
    out.replaceChildren(h("p", { class: "soft" }, "Reading the stacks…"));
    post("stacks", {}, { run: id }).then((answer) => out.replaceChildren(...stackReport(answer)),
      (error) => out.replaceChildren(problem(error))).finally(() => { go.disabled = false; });
  } }, "Take the stacks now");
  pane.replaceChildren(h("p", { class: "soft" }, "Where every thread of every process is, as ",
    h("code", {}, "holdfast backtrace"), " shows it. Each process stops for some milliseconds."), go, out);
}
function stackReport(answer) {
  const verdict = answer.verdict || {};
  const stuck = ["hang", "loader-stall", "collective-stall", "stopped"].includes(verdict.code);
  return [h("p", { class: `verdict ${stuck ? "bad" : "ok"}` }, `${stuck ? "■" : "●"} ${verdict.say}`),
    ...answer.processes.map((one) => h("details", { open: answer.processes.length < 4 },
    h("summary", {}, `${one.role || "process"} · process ${one.pid} · ${one.state || ""}`),
    one.problem ? h("p", { class: "problem" }, one.problem) : null,
      (one.threads || []).map((thread) => h("div", { class: "stack" }, h("b", {}, thread.name || `thread ${thread.thread}`),
      thread.active ? h("span", { class: "soft" }, " computing") : null,
      h("ol", {}, (thread.frames || []).slice(0, 25).map((frame) => h("li", {}, h("code", {}, frame.func),
        h("span", { class: "soft" }, ` ${frame.file}:${frame.line}`))))))))];
}

const checkpoints = (pane, id, row, rollBack, full = false) => loading(pane, id,
  () => get("checkpoints", { run: id, full: full ? 1 : null }), (answer) => {
  const rows = [...answer.checkpoints].sort((a, b) => (b.step ?? -1) - (a.step ?? -1)),
    best = rows.find((one) => one.state === "clean" && !one.weights_only);
  if (!rows.length) return empty("This run has no checkpoints of its own. ", h("code", {}, "holdfast save"), " makes one.");
  return [best ? h("p", {}, "Resume from ", h("code", {}, best.path.split("/").pop()),
    ": the newest that is clean and complete.", h("code", { class: "command" }, `holdfast resume ${row().name}`))
    : h("p", { class: "bad" }, "■ None of them is clean and complete."),
    table(["Checkpoint", "Step", "Epoch", "Saved", "Size", "Holds", "State", ""],
      rows.map((one) => [h("code", {}, one.path.split("/").pop()), num(one.step), num(one.epoch),
      clock(one.saved_at || one.modified), bytes(one.size), one.holds.join(", "),
      h("span", { class: `tag ${one.state === "clean" ? "ok" : "bad"}`,
        title: one.troubles.map((each) => each.words).join("; ") }, one.state + (one.verified ? ", every byte read" : "")),
      rollBack && row().alive ? h("button", { onclick: () => rollBack(one.path.split("/").pop()) }, "Roll back…") : ""]),
        [1, 2, 4]),
    full ? "" : h("button", { onclick: () => checkpoints(pane, id, row, rollBack, true) }, "Read every byte of them")];
});

function sample(one) {
  const fields = Object.entries(one.fields);
  const picture = fields.find(([, field]) => field.picture);
  return h("figure", { class: `sample ${one.bad ? "bad" : ""}` }, picture ? h("img", { src: picture[1].picture, alt: `sample ${one.index}` }) : null,
    h("figcaption", {}, h("b", {}, `${one.bad ? "■ " : ""}${one.index}`), fields.filter(([, field]) => field.values).map(([name, field]) => h("span",
      { class: "soft" }, `field ${name}: ${field.values.join(" ")}${field.shape.reduce((a, b) => a * b, 1) > field.values.length ? " …" : ""}`))));
}
function data(answer) {
  const parts = [];
  for (const batch of answer.saved) parts.push(h("h3", {}, `Bad batch of step ${num(batch.step)}`),
    h("p", { class: "soft" }, [batch.dataset, `input: ${batch.input}`, batch.bad_samples.length ? `bad samples: ${batch.bad_samples.join(", ")}` : "",
      ...batch.not_saved].filter(Boolean).join(" · ")), h("div", { class: "samples" }, batch.samples.map(sample)),
    h("code", { class: "command" }, `holdfast replay ${quoted(answer.name)} --step ${batch.step}`));
  if (answer.fields.length) parts.push(h("h3", {}, "What sampled batches held"),
    table(["Data", "Field", "Batches", "Mean", "Deviation", "Lowest", "Highest", "Distinct samples"],
    answer.fields.map((one) => [one.split, h("code", {}, one.field), num(one.batches), num(one.mean), num(one.deviation),
    num(one.lowest), num(one.highest), percent(one.distinct)]), [2, 3, 4, 5, 6, 7]));
  if (answer.workers.length) parts.push(h("h3", {}, "The loader"),
    table(["Worker", "Training waited", "Batches ready", "Memory", "Pinned", "Persistent"],
    answer.workers.map((one) => [one.worker < 0 ? "in the training process" : String(one.worker), duration(one.waited),
    num(one.queue), bytes(one.rss), one.pinned ? "yes" : "no", one.persistent ? "yes" : "no"]), [1, 2, 3]));
  if (answer.set) parts.push(h("h3", {}, "The data set"), ...["visualize", "validate", "stats"].map((verb) => h("code",
    { class: "command" }, `holdfast ${verb} ${quoted(answer.set)}`)));
  return parts.length ? parts : empty("No batch of a torch DataLoader was sampled. ", h("code", {}, "holdfast stats DATA"),
    " counts a data set.");
}

function environment(answer) {
  const rows = [];
  const walk = (value, name) => {
    if (value && typeof value === "object" && !Array.isArray(value)) for (const [key, one] of Object.entries(value)) walk(one,
      name ? `${name}.${key}` : key);
    else rows.push([h("code", {}, name), Array.isArray(value) ? value.join(" ") : /(^|\.)(started|ended)$/.test(name)
      && typeof value === "number" ? clock(value) : value === null ? "–" : String(value)]);
  };
  walk(answer.info, "");
  return [h("p", { class: "soft" }, answer.folder), table(["Setting", "Value"], rows)];
}

export const TABS = {
  diagnosis: ofTab("diagnosis", diagnosis), journal: ofTab("journal", journal), parameters: ofTab("parameters", parameters),
    modules: ofTab("modules", modules), ranks: rankTab,
  stacks, checkpoints, data: ofTab("data", data), environment: ofTab("environment", environment),
};
