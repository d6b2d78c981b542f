// A load as it went: which agent worked when, for how long, on how much.

import { bytes, h, seconds, svg } from "./dom.js";

const WIDTH = 900;
const ROW = 26;
const LABEL = 170;

export function timeline(report, reasons) {
  const isNews = (text) => text && !reasons.some((reason) => reason.includes(text));
  const spans = placed(report);
  return h("div", { class: "timeline" },
    h("p", {}, `${report.outcome} after ${seconds(report.seconds)}`),
    report.details?.attestation && h("p", { class: "soft" }, `Receipt ${report.details.attestation}`),
    isNews(report.error) && h("p", { class: "error" }, report.error),
    spans.length ? drawing(report, spans) : h("p", { class: "soft" }, "No agents."),
    spans.length ? table(report, isNews) : null);
}

// The report has durations. LOAD runs down the chain, what ends the load runs at its end, and the backend between.
function placed(report) {
  const done = (wanted) => report.entries.flatMap((entry) =>
    entry.actions.filter((action) => wanted(action.action)).map((action) => ({ agent: entry.agent, row: entry.index, ...action })));
  const loads = done((action) => action === "LOAD");
  const ends = done((action) => action === "LOAD_COMPLETE" || action === "LOAD_FAIL");
  let time = 0;
  for (const span of loads) {
    span.start = time;
    time += span.seconds;
  }
  const begun = Math.max(time, report.seconds - ends.reduce((sum, span) => sum + span.seconds, 0));
  if (loads.length && report.outcome !== "failed") {
    loads.push({ agent: "backend", row: report.entries.length, action: "load", start: time, seconds: begun - time, outcome: "backend" });
  }
  time = begun;
  for (const span of report.outcome === "failed" ? ends.reverse() : ends) {
    span.start = time;
    time += span.seconds;
  }
  return [...loads, ...ends];
}

function drawing(report, spans) {
  const rows = Math.max(...spans.map((span) => span.row)) + 1;
  const total = Math.max(...spans.map((span) => span.start + span.seconds), 1e-9);
  const scale = (WIDTH - LABEL) / total;
  const names = new Map(spans.map((span) => [span.row, span.agent]));
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${rows * ROW}`, role: "img", "aria-label": "The agents of the load over time; the table below has the same." },
    [...names].map(([row, name]) => [
      svg("rect", { class: "track", x: LABEL, y: row * ROW + 3, width: WIDTH - LABEL, height: ROW - 6 }),
      svg("text", { x: 0, y: row * ROW + 17 }, name),
    ]),
    spans.map((span) => svg("rect", {
      class: span.outcome, x: LABEL + span.start * scale, y: span.row * ROW + 3, width: Math.max(span.seconds * scale, 2), height: ROW - 6,
    }, svg("title", {}, `${span.agent} ${span.action}: ${seconds(span.seconds)}`))));
}

function table(report, isNews) {
  const heads = ["Agent", "Action", "Outcome", "Time", "Read", "Written", "Signer", "Notes"];
  const rows = report.entries.flatMap((entry) => entry.actions.map((action) => h("tr", {},
    cell("Agent", `${entry.agent}${entry.origin === "config" ? "" : ` (${entry.origin})`}`),
    cell("Action", action.action),
    h("td", { "data-label": "Outcome" }, h("span", { class: `state ${action.outcome === "ok" ? "good" : "bad"}` }, action.outcome)),
    cell("Time", seconds(action.seconds)),
    cell("Read", action.bytes_read ? bytes(action.bytes_read) : ""),
    cell("Written", action.bytes_written ? bytes(action.bytes_written) : ""),
    cell("Signer", action.signers.join(", ")),
    h("td", { "data-label": "Notes" }, action.error && h("div", { class: "error" }, isNews(action.error) ? action.error : "Refused, for the reason above."), action.notes.map((note) => h("div", {}, note)), digests(action.digests)))));
  return h("table", { class: "wide" }, h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, rows));
}

function cell(label, text) {
  return h("td", { "data-label": label }, text);
}

function digests(found) {
  const entries = Object.entries(found);
  if (!entries.length) return null;
  return h("details", {}, h("summary", {}, `${entries.length} digest${entries.length > 1 ? "s" : ""}`),
    h("ul", {}, entries.map(([path, digest]) => h("li", {}, `${path}: `, h("code", {}, digest)))));
}
