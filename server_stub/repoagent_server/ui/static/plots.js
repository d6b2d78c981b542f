// Small plots of the last minutes.

import { h, seconds, svg } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 48;

const KINDS = [
  ["rate", "Requests", (value) => `${value.toFixed(value < 10 ? 1 : 0)}/s`],
  ["failed", "Failures", (value) => `${value.toFixed(value < 10 ? 1 : 0)}/s`],
  ["latency", "Latency", seconds],
  ["queue", "Time in the queue", seconds],
];

export function plots(values) {
  return h("div", { class: "plots" }, KINDS.map(([field, title, text]) => plot(values.map((value) => value[field]), title, text)));
}

function plot(values, title, text) {
  const last = values.length ? text(values[values.length - 1]) : "no data yet";
  const top = Math.max(...values, 1e-12);
  const step = WIDTH / Math.max(values.length - 1, 1);
  const points = values.map((value, place) => `${(place * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`);
  return h("figure", { class: "plot" },
    h("figcaption", {}, h("span", {}, title), h("strong", {}, last)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": values.length ? `${title}: ${last}, at most ${text(top < 1e-9 ? 0 : top)}` : title },
    svg("polyline", { points: points.join(" ") })));
}
