// All models: a row for each, with its versions, its last load and its requests.

import { api } from "./api.js";
import { bytes, h, seconds } from "./dom.js";

const KINDS = { READY: "good", UNAVAILABLE: "bad", LOADING: "busy", UNLOADING: "busy" };
const WORST_FIRST = ["UNAVAILABLE", "LOADING", "UNLOADING", "READY"];
const AT_ONCE = 4;

export function state(text, reason) {
  const kind = reason === "unloaded" ? "" : KINDS[text];
  return h("span", { class: `state ${kind ?? ""}` }, text || "not loaded");
}

export function modelPath(name) {
  return `#/models/${encodeURIComponent(name)}`;
}

// The load report of each model, asked for when its states have changed, a few at a time.
export class Reports {
  constructor(changed) {
    this.changed = changed;
    this.known = new Map();
    this.waiting = [];
    this.asking = 0;
  }

  of(name, entries) {
    const stamp = JSON.stringify(entries);
    const known = this.known.get(name);
    if (known?.stamp !== stamp) {
      this.known.set(name, { stamp, report: known?.report });
      if (entries.some((entry) => entry.state)) this.waiting.push(name);
      this.next();
    }
    return this.known.get(name).report;
  }

  async next() {
    if (this.asking >= AT_ONCE || !this.waiting.length) return;
    const name = this.waiting.shift();
    this.asking += 1;
    try {
      this.known.get(name).report = await api.report(name);
      this.changed();
    } catch { /* Not loaded yet, or not for this viewer: its cells stay empty. */ } finally {
      this.asking -= 1;
      this.next();
    }
  }
}

export function modelsView(index, statistics, reports) {
  if (!index.length) return h("section", {}, h("h2", {}, "Models"), h("p", {}, "There are no models, or none that you may see."));
  const models = grouped(index);
  const heads = ["Model", "State", "Versions", "Load time", "Size", "Agents", "Requests", "Last request"];
  return h("section", {}, h("h2", {}, "Models"), h("p", { class: "soft" }, summary([...models.values()])),
    h("table", { class: "wide models" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, [...models].map(([name, entries]) => rows(name, entries, served(statistics, name), reports.of(name, entries))))));
}

function grouped(index) {
  const found = new Map();
  for (const entry of index) found.set(entry.name, [...(found.get(entry.name) ?? []), entry]);
  return found;
}

function worst(entries) {
  return [...entries].sort((one, other) => WORST_FIRST.indexOf(one.state) - WORST_FIRST.indexOf(other.state))[0];
}

function summary(models) {
  const counts = new Map();
  for (const entries of models) {
    const text = worst(entries).state?.toLowerCase() ?? "not loaded";
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  return [...counts].map(([text, count]) => `${count} ${text}`).join(", ");
}

function served(statistics, name) {
  const found = (statistics.model_stats ?? []).filter((row) => row.name === name);
  const sum = (kind) => found.reduce((total, row) => total + (row.inference_stats?.[kind]?.count ?? 0), 0);
  return { good: sum("success"), failed: sum("fail"), last: Math.max(0, ...found.map((row) => row.last_inference ?? 0)) };
}

function rows(name, entries, requests, report) {
  const shown = worst(entries);
  const versions = entries.filter((entry) => entry.version && entry.state === "READY").map((entry) => entry.version);
  const agents = report ? report.entries.map((entry) => entry.agent).join(" → ") : "";
  const failed = requests.failed ? `, ${requests.failed.toLocaleString()} failed` : "";
  const cell = (label, text) => h("td", { "data-label": label }, text);
  const reasons = [...new Set(entries.map((entry) => entry.reason).filter((reason) => reason && reason !== "unloaded"))];
  return [
    h("tr", { class: reasons.length ? "has-reason" : "" },
      h("td", { class: "name" }, h("a", { href: modelPath(name) }, name)),
      cell("State", state(shown.state, shown.reason)),
      cell("Versions", versions.join(", ")),
      cell("Load time", report ? seconds(report.seconds) : ""),
      cell("Size", report?.size ? bytes(report.size) : ""),
      cell("Agents", agents),
      cell("Requests", requests.good || requests.failed ? `${requests.good.toLocaleString()}${failed}` : ""),
      cell("Last request", requests.last ? new Date(requests.last).toLocaleString() : "")),
    reasons.length ? h("tr", { class: "reason" }, h("td", { colspan: 8 }, reasons.join("; "))) : null,
  ];
}
