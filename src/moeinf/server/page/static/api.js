// Talks to the server. Whatever goes wrong is an Error whose message is one line for the user.

const STORED_KEY = "moeinf-key";

/** The server wants a key, or another one. */
export class KeyNeeded extends Error {}

export function setKey(key) {
  sessionStorage.setItem(STORED_KEY, key);
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(STORED_KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is moeinf serve still running?");
  }
  if (response.status === 401) throw new KeyNeeded("This server asks for a key.");
  if (!response.ok) throw new Error(await refusal(response));
  return response;
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    if (error) return typeof error === "string" ? error : String(error.message);
  } catch {
    // no JSON: the status has to say it
  }
  return `The server answered ${response.status} ${response.statusText}`.trim();
}

function post(path, body, signal, more = {}) {
  const headers = { "Content-Type": "application/json", ...more };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {}); // nobody reads on
  }
}

/** Names of the stored models. */
export async function modelNames() {
  const { models } = await (await request("/api/tags")).json();
  return models.map((model) => model.name);
}

/** Names of the models that are loaded. */
export async function loadedNames() {
  const { models } = await (await request("/api/ps")).json();
  return models.map((model) => model.name);
}

/**
 * What a model does: thinks ("never", "always", or "switch" where that can be chosen), chats (it has a template), sees
 * pictures; and the sampling options that it was made for, by name.
 */
export async function abilities(model) {
  const shown = await (await post("/api/show", { model })).json();
  const can = (name) => Boolean(shown.capabilities?.includes(name));
  const rows = (shown.parameters ?? "").split("\n").map((row) => row.split(/\s+/, 2));
  return {
    thinks: !can("thinking") ? "never" : shown.moeinf?.always_thinks ? "always" : "switch",
    sees: can("vision"),
    chats: Boolean(shown.template),
    options: Object.fromEntries(rows.filter((row) => row.length === 2)),
  };
}

/**
 * Asks for an answer; yields the objects of its stream, of which the last has `done`. question: the body of /api/chat,
 * where undefined members are left to the model. request: the name by which /api/live tells of it. Aborting `gone` ends
 * the answer on the server too.
 */
export async function* chat(question, { gone, request: name }) {
  const response = await post("/api/chat", { ...question, stream: true }, gone.signal, { "X-Request-Id": name });
  let ended = false;
  for await (const line of lines(response)) {
    if (!line.trim()) continue;
    const piece = JSON.parse(line);
    if (piece.error) throw new Error(piece.error);
    ended ||= piece.done;
    yield piece;
  }
  if (!ended) throw new Error("The connection broke before the answer was whole. Ask again.");
}

/** The models that have names: objects with name, parameters, bytes_at_4_bits, tokens_per_s and more. */
export async function availableModels() {
  return (await (await request("/api/available")).json()).models;
}

/** The forms in which a model is published, and the one that suits this machine: {forms, taken, notes}. */
export async function formsOf(name, signal) {
  return (await request(`/api/available/${encodeURI(name)}`, { signal })).json();
}

/** Fetches a model; yields {status, total, completed} as it goes on. Aborting `signal` stops it; what is there stays. */
export async function* pull(model, signal) {
  let whole = false;
  for await (const line of lines(await post("/api/pull", { model }, signal))) {
    if (!line.trim()) continue;
    const told = JSON.parse(line);
    if (told.error) throw new Error(told.error);
    whole ||= told.status === "success";
    yield told;
  }
  if (!whole) throw new Error("The connection broke before the model was whole. Fetch it again: it goes on from there.");
}

/** Yields what the machine does, twice a second. */
export async function* live(signal) {
  const response = await request("/api/live", { signal });
  for await (const line of lines(response)) {
    if (line.startsWith("data:")) yield JSON.parse(line.slice(5));
  }
}
