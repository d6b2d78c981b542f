// The server's API, with the key of whoever looks. The key stays in this tab.

const KEY = "repoagent-key";
const ROOT = new URL("..", document.baseURI); // the page is ROOT/ui/

export class ServerError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export async function ask(method, path, body) {
  const headers = {};
  if (hasKey()) headers.authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(new URL(path, ROOT), {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store",
    });
  } catch {
    throw new ServerError(0, "The server does not answer.");
  }
  const text = await answer.text();
  let document = null;
  try {
    document = text ? JSON.parse(text) : null;
  } catch { /* Not JSON: a proxy's page, or NaN among an answer's numbers. */ }
  if (!answer.ok) throw new ServerError(answer.status, document?.error ?? (text.slice(0, 500) || answer.statusText));
  return document ?? text;
}

const name = encodeURIComponent;
const repository = (model, version) => `v2/repository/models/${name(model)}${version ? `/versions/${version}` : ""}`;
const models = (model, version) => `v2/models/${name(model)}${version ? `/versions/${version}` : ""}`;

export const api = {
  session: () => ask("GET", "ui/session"),
  server: () => ask("GET", "v2"),
  index: () => ask("POST", "v2/repository/index", {}),
  statistics: () => ask("GET", "v2/models/stats"),
  report: (model) => ask("GET", `${repository(model)}/report`),
  metadata: (model, version) => ask("GET", models(model, version)),
  config: (model, version) => ask("GET", `${models(model, version)}/config`),
  infer: (model, version, body) => ask("POST", `${models(model, version)}/infer`, body),
  load: (model) => ask("POST", `${repository(model)}/load`, {}),
  unload: (model) => ask("POST", `${repository(model)}/unload`, {}),
};
