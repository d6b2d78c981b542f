// A form made of the model's metadata, which sends one request.

import { api } from "./api.js";
import { h, seconds } from "./dom.js";

const LONGEST = 4096; // Elements that are filled in for a start.

export function inferForm(model, version, metadata) {
  const fields = metadata.inputs.map((input) => field(input));
  const answer = h("pre", { hidden: true, tabindex: "0", "aria-label": "Answer" });
  const problem = h("p", { class: "error", role: "alert" });
  const send = h("button", { class: "main", type: "submit" }, "Send the request");
  const form = h("form", { novalidate: true }, fields.map((one) => one.element), h("div", { class: "actions" }, send), problem, answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = "";
    answer.hidden = true;
    send.disabled = true;
    try {
      const body = { inputs: fields.map((one) => one.read()) };
      const begun = performance.now();
      const found = await api.infer(model, version, body);
      answer.textContent = `${seconds((performance.now() - begun) / 1e3)}\n${typeof found === "string" ? found : JSON.stringify(found, null, 2)}`;
      answer.hidden = false;
    } catch (error) {
      problem.textContent = error.message;
    } finally {
      send.disabled = false;
    }
  });
  return form;
}

function field(input) {
  const shape = input.shape.map((size) => (Number(size) < 0 ? 1 : Number(size)));
  const count = shape.reduce((product, size) => product * size, 1);
  const start = Array(Math.min(count, LONGEST)).fill(input.datatype === "BYTES" ? "" : input.datatype === "BOOL" ? false : 0);
  const id = `input-${input.name}`;
  const size = h("input", { id: `${id}-shape`, value: JSON.stringify(shape), spellcheck: "false" });
  const data = h("textarea", { id, spellcheck: "false" });
  data.value = JSON.stringify(start);
  return {
    element: h("fieldset", {},
      h("legend", {}, `${input.name} `, h("span", { class: "soft" }, `${input.datatype} [${input.shape.join(", ")}]`)),
      h("label", { for: `${id}-shape` }, "Shape"), size,
      h("label", { for: id }, "Data, as a JSON list"), data),
    read: () => ({ name: input.name, datatype: input.datatype, shape: parsed(input.name, "shape", size.value), data: parsed(input.name, "data", data.value) }),
  };
}

function parsed(name, what, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The ${what} of '${name}' is not valid JSON: ${error.message}`);
  }
  if (!Array.isArray(value)) throw new Error(`The ${what} of '${name}' must be a JSON list.`);
  return value;
}
