// Which view is shown, and when it is looked at again.

import { api, hasKey, setKey } from "./api.js";
import { h } from "./dom.js";
import { History } from "./history.js";
import { ModelView } from "./model_view.js";
import { modelsView, Reports } from "./models_view.js";

const EVERY_MS = 2000;

const content = document.getElementById("content");
const status = document.getElementById("status");
const signOut = document.getElementById("sign-out");
const history = new History();
const reports = new Reports(() => view || refresh());
let session = null;
let view = null;
let turn = 0;

function say(text, bad = false) {
  status.textContent = text;
  status.className = bad ? "bad" : "";
}

function route() {
  const match = /^#\/models\/([^/]+)$/.exec(location.hash);
  try {
    return match ? decodeURIComponent(match[1]) : null;
  } catch {
    return null;
  }
}

async function show() {
  const model = route();
  document.title = model === null ? "repoagent" : `${model} – repoagent`;
  view = model === null ? null : new ModelView(model, session, history, (text, bad) => {
    say(text, bad);
    refresh();
  });
  if (view) content.replaceChildren(view.element);
  await refresh();
  content.focus({ preventScroll: true });
}

async function refresh() {
  if (session === null) return;
  const mine = (turn += 1);
  try {
    const [index, statistics] = await Promise.all([api.index(), api.statistics()]);
    if (mine !== turn) return; // a newer look is on its way
    history.add(statistics, performance.now() / 1e3);
    if (view) await view.refresh(index);
    else keepingFocus(() => content.replaceChildren(modelsView(index, statistics, reports)));
    if (status.dataset.lost) say("");
    delete status.dataset.lost;
  } catch (error) {
    if (error.status === 401) return void askForKey("The server does not take this key any more.");
    status.dataset.lost = "1";
    say(error.message, true);
  }
}

// The list is made again at each look: whoever moves through it by keyboard stays where they were.
function keepingFocus(change) {
  const link = document.activeElement?.getAttribute?.("href");
  change();
  if (link) content.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus();
}

function askForKey(text) {
  session = null;
  view = null;
  signOut.hidden = true;
  const key = h("input", { id: "key", type: "password", autocomplete: "off", required: true });
  const form = h("form", {}, h("h2", {}, "This server asks for a key"), text ? h("p", { class: "error", role: "alert" }, text) : null,
    h("label", { for: "key" }, "Key or token, kept in this tab only"), key,
    h("div", { class: "actions" }, h("button", { class: "main", type: "submit" }, "Sign in")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(key.value.trim());
    start();
  });
  content.replaceChildren(form);
  key.focus();
}

async function start() {
  try {
    session = await api.session();
  } catch (error) {
    if (error.status === 401) {
      const tried = hasKey();
      setKey("");
      return askForKey(tried ? error.message : "");
    }
    return say(error.message, true);
  }
  signOut.hidden = session.client === null;
  say("");
  try {
    const server = await api.server();
    const name = server.name === "triton" ? "" : ` ${server.name}`; // the default of Triton's clients names nothing
    const client = session.client === null ? "" : `, as ${session.client}`;
    document.getElementById("server").textContent = `version ${server.version}${name}${client}`;
  } catch { /* The models say more than the server's name. */ }
  await show();
}

signOut.addEventListener("click", () => {
  setKey("");
  location.reload();
});
addEventListener("hashchange", () => session && show());
setInterval(() => document.hidden || refresh(), EVERY_MS);
start();
