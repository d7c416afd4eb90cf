// The plots of a page that is a file. Each is in a root of its own: the page's style and theirs do not meet.
import { h } from "./base.js";
import { Plot, SERIES, xWords } from "./plots.js";

const WHOLE = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power));
const plots = [], zooms = {}, dark = matchMedia("(prefers-color-scheme: dark)");
for (const place of document.querySelectorAll(".holdfast-plot")) {
  const { title, along, lines, marks } = JSON.parse(place.querySelector("script").textContent);
  const told = h("p", { class: "soft told" }, along);
  const shared = { along, whole: WHOLE, marks: () => marks, get range() { return zooms[along] || null; },
    zoom: (to) => { zooms[along] = to; plots.forEach((one) => one.shared.along === along && one.show(one.lines)); },
    open: (near) => { told.textContent = near.map((one) => `${along} ${one.x}: ${one.label}`).join(", "); },
    crosshair: (x) => { told.textContent = xWords(along, x); } };
  const plot = new Plot({ key: title, title, large: true }, shared);
  const root = place.attachShadow({ mode: "open" });
  plot.element.append(told);
  root.append(h("style", {}, globalThis.HOLDFAST_STYLE), plot.element);
  place.dataset.theme = dark.matches ? "dark" : "light";
  plot.show(lines.map((one, at) => ({ ...one, colour: SERIES[at % SERIES.length] })));
  plots.push(plot);
}
dark.addEventListener("change", () => plots.forEach((one) => {
  one.element.getRootNode().host.dataset.theme = dark.matches ? "dark" : "light";
  one.redraw();
}));
