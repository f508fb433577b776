// Speaks the Model Context Protocol over streamable HTTP with the servers that the person has named. It is a worker
// because a worker has a policy of its own: only this file may ask other servers, and the page is as locked up as ever.
// A request is { id, address, key, method, params }, with a key where the server wants one, and { id, gone: true } gives it up; the answer is { id, result } or
// { id, error }, one line for the person.

const VERSION = "2025-06-18"; // the server answers with the one that it speaks
const PATIENCE_MS = 20_000; // a call of a tool may take as long as it likes
const PROBE_MS = 3000;
const NO_SUCH_METHOD = -32601;

const sessions = new Map(); // by address and key, each a promise
const running = new Map(); // by the request's id

onmessage = async ({ data: { id, address, key, method, params, gone } }) => {
  if (gone) {
    running.get(id)?.abort();
    return;
  }
  const control = new AbortController();
  running.set(id, control);
  try {
    postMessage({ id, result: await asked({ address, key }, method, params, control.signal) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
  running.delete(id);
};

/** Asks within the session of a server, which is begun where there is none, or where the server has forgotten it. */
async function asked(server, method, params, signal) {
  const known = sessions.has(named(server));
  const session = await opened(server);
  try {
    const limit = method === "tools/call" ? signal : AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]);
    return await session.ask(method, params, limit);
  } catch (error) {
    if (!known || !(error instanceof Forgotten)) throw error;
    sessions.delete(named(server));
    return (await opened(server)).ask(method, params, signal);
  }
}

const named = ({ address, key = "" }) => `${address} ${key}`;

function opened(server) {
  const name = named(server);
  if (!sessions.has(name)) {
    const session = new Session(server);
    const begun = session.begin().then(() => session);
    begun.catch(() => sessions.delete(name)); // the next request tries again
    sessions.set(name, begun);
  }
  return sessions.get(name);
}

/** The header that has a key: `Name: value`, or the key alone, for the usual one. */
function headerOf(key) {
  const [, name, value] = /^([\w-]+):\s+(.+)$/.exec(key) ?? [key, "Authorization", `Bearer ${key}`];
  return { name, value };
}

/** The server knows nothing of the session. */
class Forgotten extends Error {}

class Session {
  #address;
  #headers = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
  #keyHeader;
  #last = 0;

  constructor({ address, key }) {
    this.#address = address;
    if (!key) return;
    const { name, value } = headerOf(key);
    this.#headers[name] = value;
    this.#keyHeader = name;
  }

  async begin() {
    const params = { protocolVersion: VERSION, capabilities: {}, clientInfo: { name: "moeinf", version: "1" } };
    const { protocolVersion } = await this.ask("initialize", params, AbortSignal.timeout(PATIENCE_MS));
    this.#headers["MCP-Protocol-Version"] = protocolVersion;
    await this.#post({ method: "notifications/initialized" });
  }

  /** The result of a request. Raises an Error with what the server says against it. */
  async ask(method, params, signal) {
    const id = (this.#last += 1);
    try {
      const response = await this.#post({ id, method, params }, signal);
      const session = response.headers.get("Mcp-Session-Id");
      if (session) this.#headers["Mcp-Session-Id"] = session;
      for await (const message of messages(response)) {
        if (message.method && message.id !== undefined) await this.#answer(message);
        else if (message.id === id && message.error) throw new Error(`${this.#address}: ${message.error.message}`);
        else if (message.id === id) return message.result ?? {};
      }
    } catch (error) {
      if (error.name === "AbortError") {
        this.#post({ method: "notifications/cancelled", params: { requestId: id } }).catch(() => {});
        throw new Error("The call was given up.");
      }
      if (error.name === "TimeoutError") throw new Error(`${this.#address} does not answer.`);
      throw error;
    }
    throw new Error(`${this.#address} does not speak MCP over streamable HTTP: there is no answer in what it sent.`);
  }

  /** What a server asks of its client: this one only says that it is there. */
  #answer({ id, method }) {
    const error = { code: NO_SUCH_METHOD, message: `${method} is not offered here` };
    return this.#post(method === "ping" ? { id, result: {} } : { id, error });
  }

  async #post(message, signal) {
    const body = JSON.stringify({ jsonrpc: "2.0", ...message });
    let response;
    try {
      const options = { method: "POST", headers: this.#headers, body, signal, credentials: "omit" };
      response = await fetch(this.#address, options);
    } catch (error) {
      if (error instanceof TypeError) throw new Error(await whyOutOfReach(this.#address, this.#keyHeader));
      throw error;
    }
    if (!response.ok) throw this.#refusal(response.status);
    return response;
  }

  #refusal(status) {
    const told = `${this.#address} answers with status ${status}`;
    const known = "Mcp-Session-Id" in this.#headers;
    if (status === 404 && known) return new Forgotten(`${told}: the session is over.`);
    if (status === 401) {
      return new Error(`${told}: it ${this.#keyHeader ? "refuses this key" : "wants a key; Settings has a field for it"}.`);
    }
    if (status === 403) return new Error(`${told}: it may have to be told to allow the origin ${location.origin}.`);
    if (status === 405) return new Error(`${told}: it does not take MCP over streamable HTTP there.`);
    if (status === 400 && !known && "MCP-Protocol-Version" in this.#headers) {
      return new Error(`${told}. If it has sessions, its CORS has to expose the header Mcp-Session-Id.`);
    }
    return new Error(`${told}. Is that the address of an MCP server, with its path?`);
  }
}

/** The browser does not say why a request failed; whether anything is there at all can be found out. */
async function whyOutOfReach(address, keyHeader) {
  try {
    await fetch(address, { mode: "no-cors", credentials: "omit", signal: AbortSignal.timeout(PROBE_MS) });
  } catch {
    return `Nothing answers at ${address}. Does the server run, and is that its address?`;
  }
  const headers = ["Content-Type", "Mcp-Session-Id", ...(keyHeader ? [keyHeader] : [])].join(", ");
  return (
    `${address} answers, but does not let a browser's page use it: by CORS it has to allow the origin ` +
    `${location.origin} and the headers ${headers} and MCP-Protocol-Version.`
  );
}

/** The messages of a response: one of JSON, or those of a stream of server-sent events. */
async function* messages(response) {
  const type = response.headers.get("Content-Type") ?? "";
  if (type.startsWith("application/json")) {
    yield* [await response.json()].flat();
    return;
  }
  if (!type.startsWith("text/event-stream")) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:"));
        if (data.length) yield JSON.parse(data.map((line) => line.slice(5).trimStart()).join("\n"));
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // nobody reads on
  }
}
