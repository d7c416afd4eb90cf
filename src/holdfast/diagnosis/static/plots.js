// Curves with uPlot: several series of different lengths on one axis, marks on them, one zoom and one crosshair for all.
import { bytes, clock, duration, h, num } from "./base.js";

const SMALL = 150, LARGE = 260, NEAR = 9;
const GLYPHS = { finding: "▲", action: "●", change: "◆", eval: "◆", checkpoint: "▪", diagnosis: "?" };
export const SERIES = ["c1", "c2", "c3", "c4", "c5", "c6"];

export class Plot {
  // `shared` holds what all plots of a page have in common: range, along, marks, and what to do on zoom and on a click.
  constructor(spec, shared) {
    this.spec = spec;
    this.shared = shared;
    this.log = null; // null: decided by the values
    this.scaleButton = h("button", { class: "quiet scale", title: "Log or linear scale", onclick: () => this.switchLog() },
      "linear");
    this.legend = h("span", { class: "legend" });
    this.box = h("div", { class: "canvas" });
    this.element = h("figure", { class: `plot ${spec.large ? "large" : ""}` },
      h("figcaption", {}, h("b", {}, spec.title), this.legend, this.scaleButton), this.box);
    this.observer = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
    this.observer.observe(this.box);
  }

  colour(name) {
    return getComputedStyle(this.box).getPropertyValue(`--${name}`).trim();
  }

  size() {
    return { width: Math.max(200, this.box.clientWidth), height: this.spec.large ? LARGE : SMALL };
  }

  switchLog(to = !this.isLog) {
    this.log = to;
    this.redraw();
  }

  show(lines) {
    // lines: [{name, x, y, bad, faint}]
    this.lines = lines.filter((one) => one.x.length);
    this.element.hidden = !this.lines.length && !this.spec.large;
    const values = this.lines.flatMap((one) => one.y);
    const positive = values.filter((one) => one > 0);
    const low = positive.reduce((a, b) => Math.min(a, b), Infinity), high = positive.reduce((a, b) => Math.max(a, b), 0);
    const isLog = this.log ?? (!this.spec.linear && positive.length > 0.95 * values.length && high > 100 * low);
    const key = JSON.stringify([isLog, this.shared.along, this.lines.map((one) => one.name)]);
    this.isLog = isLog;
    this.bad = this.lines.flatMap((one) => one.bad || []);
    if (!this.lines.length) return;
    const data = uPlot.join(this.lines.map((one) => [one.x, isLog ? one.y.map((value) => (value > 0 ? value : null)) : one.y]));
    if (this.plot && key === this.key) {
      this.plot.setData(data, false);
      this.rescale();
      this.tell(this.plot);
    } else this.make(data, key);
  }

  rescale() {
    const { range } = this.shared, data = this.plot.data[0];
    this.plot.batch(() => {
      this.plot.setScale("x", range ? { min: range[0], max: range[1] }
        : { min: data[0], max: data[data.length - 1] === data[0] ? data[0] + 1 : data[data.length - 1] });
    });
  }

  redraw() {
    this.key = null;
    if (this.lines) this.show(this.lines);
  }

  make(data, key) {
    if (this.plot) this.plot.destroy();
    this.key = key;
    this.scaleButton.textContent = this.isLog ? "log scale" : "linear";
    this.scaleButton.classList.toggle("on", this.isLog);
    const ink = this.colour("soft"), line = this.colour("grid"), font = "11px system-ui, sans-serif";
    const format = this.spec.format || num;
    const axis = { stroke: ink, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
    const few = this.isLog ? { filter: decades } : {};
    this.plot = new uPlot({
      ...this.size(), padding: [this.spec.large ? 16 : 6, null, null, null], // above the curves: the signs of the marks
      legend: { show: false },
      cursor: { sync: { key: "holdfast", setSeries: false }, drag: { x: true, y: false, setScale: false },
        points: { size: 5 } },
      scales: { x: { time: this.shared.along === "time" },
        y: this.isLog ? { distr: 3 } : { range: (u, low, high) => padded(low, high) } },
      axes: [
        { ...axis, size: 28, gap: 3, space: 70, incrs: this.shared.whole, values: this.shared.along === "time" ? undefined
          : (u, ticks) => ticks.map((one) => num(one)) },
        { ...axis, gap: 4, space: 26, size: (u, values) => 16 + 6.2 * Math.max(4,
          ...(values || []).map((one) => (one || "").length)),
          values: (u, ticks, axis, space, step) => onAxis(ticks, this.isLog ? null : step, format), ...few, grid: { ...axis.grid, ...few },
            ticks: { ...axis.ticks, ...few } },
      ],
      series: [{}, ...this.lines.map((one) => ({
        label: one.name, stroke: alpha(this.colour(one.colour), one.faint ? 0.35 : 1), width: one.faint ? 1 : 1.6, spanGaps: true,
          dash: one.dash,
        points: { show: one.x.length < 60 && !one.faint, size: 4 },
      }))],
      hooks: {
        setSelect: [(u) => u.select.width > 4 && this.shared.zoom([u.posToVal(u.select.left, "x"),
          u.posToVal(u.select.left + u.select.width, "x")])],
        draw: [(u) => this.drawMarks(u)],
        setCursor: [(u) => this.tell(u)],
        ready: [(u) => {
          u.over.addEventListener("dblclick", () => this.shared.zoom(null));
          u.over.addEventListener("click", (event) => this.clicked(u, event));
        }],
      },
    }, data, this.box);
    this.rescale();
    this.tell(this.plot);
  }

  tell(u) {
    const at = u.cursor.idx, format = this.spec.format || num;
    this.legend.replaceChildren(...this.lines.map((one, place) => {
      if (one.faint && this.lines.length > 1 && this.lines.some((other) => other.of === one.name)) return "";
      const data = u.data[place + 1];
      let value = at === null || at === undefined ? null : data[at];
      for (let near = at; value === null || value === undefined; near--) { // the newest value before the crosshair
        if (near === null || near === undefined) near = data.length - 1;
        if (near < 0) break;
        value = data[near];
      }
      return h("span", { class: "entry" }, h("i", { class: `swatch ${one.colour} ${one.dash ? "dashed" : ""}` }),
        one.of || one.name, " ", h("b", {}, value === null || value === undefined ? "–" : format(value)));
    }));
    if (at !== null && at !== undefined && this.spec.large) this.shared.crosshair(u.data[0][at]);
  }

  places(u) {
    // marks that are too close to tell apart are one, with their number
    const shown = this.shared.marks().filter((mark) => mark.x !== null && mark.x !== undefined && u.valToPos(mark.x, "x") >= -1
      && u.valToPos(mark.x, "x") <= u.over.clientWidth + 1);
    const groups = [];
    for (const mark of shown.sort((a, b) => a.x - b.x)) {
      const left = u.valToPos(mark.x, "x"), last = groups[groups.length - 1];
      if (last && left - last.left < NEAR) last.marks.push(mark);
      else groups.push({ left, marks: [mark] });
    }
    return groups;
  }

  drawMarks(u) {
    const c = u.ctx, ratio = devicePixelRatio || 1, { left, top, height } = u.bbox;
    c.save();
    for (const { left: at, marks } of this.places(u)) {
      const worst = marks.find((one) => one.tone === "bad") || marks.find((one) => one.tone === "warn") || marks[0];
      const x = left + at * ratio;
      c.strokeStyle = c.fillStyle = this.colour(worst.kind === "checkpoint" ? "soft" : worst.tone);
      c.globalAlpha = this.spec.large ? (worst.kind === "checkpoint" ? 0.35 : 0.8) : 0.3;
      c.lineWidth = ratio;
      c.setLineDash(worst.kind === "finding" ? [] : [4 * ratio, 3 * ratio]);
      c.beginPath(); c.moveTo(x, top); c.lineTo(x, top + height); c.stroke();
      if (!this.spec.large) continue;
      c.globalAlpha = 1;
      c.font = `${11 * ratio}px system-ui, sans-serif`;
      c.textAlign = "center";
      const words = worst.label || GLYPHS[worst.kind] || "◆", half = c.measureText(words).width / 2; // which stays inside
      c.fillText(words, Math.max(left + half, Math.min(left + u.bbox.width - half, x)), top - 4 * ratio);
    }
    c.fillStyle = this.colour("bad");
    c.globalAlpha = 1;
    c.font = `bold ${11 * ratio}px system-ui, sans-serif`;
    c.textAlign = "center";
    for (const one of this.bad) c.fillText("×", left + u.valToPos(one, "x") * ratio, top + height - 2 * ratio);
    c.restore();
  }

  clicked(u, event) {
    const at = event.offsetX;
    const near = this.places(u).filter((one) => Math.abs(one.left - at) <= NEAR).sort((a,
      b) => Math.abs(a.left - at) - Math.abs(b.left - at))[0];
    if (near) this.shared.open(near.marks);
  }

  close() {
    this.observer.disconnect();
    if (this.plot) this.plot.destroy();
  }
}

function onAxis(ticks, step, format) {
  // as many digits as tell two ticks apart, in one unit for all of them
  const largest = Math.max(...ticks.filter((one) => one !== null).map(Math.abs), 0);
  if (!step || largest >= 1e6 !== (format === bytes)) return ticks.map((one) => (one === null ? null : format(one)));
  let unit = 1, name = "";
  if (format === bytes) while (largest / unit >= 1000 && unit < 1024 ** 4) unit *= 1024;
  if (format === bytes) name = [" bytes", " KiB", " MiB", " GiB", " TiB"][Math.round(Math.log2(unit) / 10)];
  if (format === duration) [unit, name] = largest < 0.1 ? [1e-3, " ms"] : [1, " s"];
  if (format !== num && format !== bytes && format !== duration) return ticks.map(format);
  let digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  if (format !== bytes && Math.abs(step / unit - Number((step / unit).toFixed(digits))) > 1e-3 * (step / unit)) digits++; // 0.25
  if (digits > 6) return ticks.map((one) => (one === null ? null : format(one)));
  return ticks.map((one) => (one === null ? null : `${Number((one / unit).toFixed(digits)).toLocaleString("en-US",
    { minimumFractionDigits: digits, maximumFractionDigits: digits })}${name}`));
}

function decades(u, ticks) {
  // powers of ten; where there are fewer than two of them, also their doubles and fives
  const power = (one) => Math.abs(Math.log10(one) - Math.round(Math.log10(one))) < 1e-6;
  const few = ticks.filter((one) => power(one) && one >= u.scales.y.min && one <= u.scales.y.max).length < 2;
  return ticks.map((one) => (power(one) || (few && /^[25]/.test(one.toExponential())) ? one : null));
}

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function alpha(hex, value) {
  return value === 1 ? hex : `color-mix(in srgb, ${hex} ${value * 100}%, transparent)`;
}

export const FORMATS = { loss: num, seconds: duration, bytes, percent: (value) => `${Math.round(value * 100)} %` };
export const xWords = (along, x) => (x === undefined || x === null ? "" : along === "time" ? clock(x)
  : `${along} ${along === "epoch" ? x.toFixed(2) : num(Math.round(x))}`);
