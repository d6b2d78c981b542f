// All models, with their states and reasons.

import { h } from "./dom.js";

const KINDS = { READY: "good", UNAVAILABLE: "bad", LOADING: "busy", UNLOADING: "busy" };

export function state(text, reason) {
  const kind = reason === "unloaded" ? "" : KINDS[text];
  return h("span", { class: `state ${kind ?? ""}` }, text || "not loaded");
}

export function modelPath(name) {
  return `#/models/${encodeURIComponent(name)}`;
}

export function modelsView(index) {
  if (!index.length) return h("section", {}, h("h2", {}, "Models"), h("p", {}, "There are no models, or none that you may see."));
  const heads = ["Model", "Version", "State", "Reason"];
  return h("section", {}, h("h2", {}, "Models"),
    h("table", { class: "wide" },
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, index.map((entry) => h("tr", {},
        h("td", {}, h("a", { href: modelPath(entry.name) }, entry.name)),
        h("td", { "data-label": "Version" }, entry.version ?? ""),
        h("td", { "data-label": "State" }, state(entry.state, entry.reason)),
        h("td", { "data-label": "Reason" }, entry.reason ?? ""))))));
}
