// One model: its versions, its last load, how busy it is, a form for a request.

import { api } from "./api.js";
import { h } from "./dom.js";
import { inferForm } from "./infer_form.js";
import { state } from "./models_view.js";
import { plots } from "./plots.js";
import { timeline } from "./timeline.js";

export class ModelView {
  constructor(model, session, history, changed) {
    this.model = model;
    this.session = session;
    this.history = history;
    this.changed = changed; // called with a text after a load or an unload
    this.versions = h("div");
    this.plots = h("div");
    this.report = h("div");
    this.details = h("div");
    this.shown = "";
    this.element = h("section", {}, h("p", {}, h("a", { href: "#/" }, "← All models")), h("h2", {}, model), this.versions, this.buttons(),
      h("h3", {}, "Now"), this.plots, h("h3", {}, "Last load"), this.report, this.details);
  }

  buttons() {
    if (!this.session.explicit) return h("p", { class: "soft" }, "Models are loaded and unloaded by the server: it does not run with --model-control-mode=explicit.");
    const allowed = this.session.manage.includes(this.model);
    if (!allowed) return h("p", { class: "soft" }, "You may look only: loading and unloading need the right “manage”.");
    const button = (text, busy, work) => {
      const made = h("button", { type: "button", onclick: () => this.run(made, busy, work) }, text);
      return made;
    };
    return h("div", { class: "actions" },
      button("Load", "Loading", () => api.load(this.model)),
      button("Unload", "Unloading", () => api.unload(this.model)));
  }

  async run(button, text, work) {
    button.disabled = true;
    this.changed(`${text} '${this.model}' …`);
    try {
      await work();
      this.changed(`${text} '${this.model}': done.`);
    } catch (error) {
      this.changed(error.message, true);
    } finally {
      button.disabled = false;
    }
  }

  async refresh(index) {
    const entries = index.filter((entry) => entry.name === this.model);
    this.versions.replaceChildren(entries.length ? h("ul", {}, entries.map((entry) => h("li", {},
      entry.version ? `version ${entry.version}: ` : "", state(entry.state, entry.reason), entry.reason ? ` ${entry.reason}` : "")))
      : h("p", {}, "There is no such model, or none that you may see."));
    this.plots.replaceChildren(plots(this.history.of(this.model)));
    const now = JSON.stringify(entries);
    if (now === this.shown) return;
    this.shown = now; // the rest changes with the states only, and a form that is being filled in must stay
    this.report.replaceChildren(await this.lastLoad(entries.map((entry) => entry.reason ?? "")));
    const ready = entries.filter((entry) => entry.state === "READY");
    this.details.replaceChildren(...(ready.length ? await this.readyDetails(ready[ready.length - 1].version) : []));
  }

  // `reasons`: what stands above already.
  async lastLoad(reasons) {
    try {
      return timeline(await api.report(this.model), reasons);
    } catch (error) {
      return h("p", { class: "soft" }, error.message);
    }
  }

  async readyDetails(version) {
    try {
      const [metadata, config] = await Promise.all([api.metadata(this.model, version), api.config(this.model, version)]);
      const form = this.session.infer.includes(this.model)
        ? inferForm(this.model, version, metadata) : h("p", { class: "soft" }, "Requests need the right “infer”.");
      return [h("h3", {}, `Ask version ${version}`), form, h("h3", {}, "Configuration"),
        h("details", {}, h("summary", {}, "Show"), h("pre", { tabindex: "0" }, JSON.stringify(config, null, 2)))];
    } catch (error) {
      return [h("p", { class: "error" }, error.message)];
    }
  }
}
