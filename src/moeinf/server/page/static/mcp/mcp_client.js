// The tools of the MCP servers that the person has named, and their calls, which a worker makes. Nothing is asked
// before a conversation has its tools switched on, or somebody wants to see them.

import { isPicture } from "../chat/chat.js";

const LONGEST_PICTURE = 4e6; // letters of base64; a request may have 16 MiB
const STORED = "moeinf-mcp-servers";
const STORED_KEYS = "moeinf-mcp-keys"; // they are in no conversation, so that none is exported with one
const MOST_PAGES = 20; // of a list of tools

let worker;
let last = 0;
const waiting = new Map();
const lists = new Map(); // of tools, by address; each a promise

/** The addresses that are kept in this browser. */
export function servers() {
  return (localStorage.getItem(STORED) ?? "").split("\n").filter(Boolean);
}

/** The keys that are kept in this browser, by address. */
export function keys() {
  return JSON.parse(localStorage.getItem(STORED_KEYS) ?? "{}");
}

/** Keeps addresses, one a line, and the keys of these, by address. Raises an Error for what is none. */
export function keepServers(text, given) {
  const addresses = addressesIn(text);
  const kept = keysOf(addresses, given);
  for (const address of addresses) {
    if (kept[address] !== keys()[address]) lists.delete(address);
  }
  keep(STORED, addresses.join("\n"));
  keep(STORED_KEYS, Object.keys(kept).length ? JSON.stringify(kept) : "");
}

function keep(name, text) {
  if (text) localStorage.setItem(name, text);
  else localStorage.removeItem(name);
}

/** The keys of these addresses, without those that are empty. Raises an Error for what no header can hold. */
export function keysOf(addresses, given) {
  const found = {};
  for (const address of addresses) {
    const key = (given[address] ?? "").trim();
    if (!/^[\x20-\x7e]*$/.test(key)) throw new Error(`The key of ${address} has letters that no header can hold.`);
    if (key) found[address] = key;
  }
  return found;
}

/** The addresses in a text, one a line. Raises an Error for what is none. */
export function addressesIn(text) {
  const addresses = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  for (const address of addresses) {
    if (!/^https?:\/\/./i.test(address) || !URL.canParse(address)) {
      throw new Error(`“${address}” is no address: it has to begin with http:// or https://`);
    }
  }
  return [...new Set(addresses)];
}

/** Asks a server. Raises an Error whose message is one line for the person. */
function ask({ address, key }, method, params, signal) {
  worker ??= startedWorker();
  const id = (last += 1);
  signal?.addEventListener("abort", () => worker.postMessage({ id, gone: true }));
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, address, key, method, params });
  });
}

function startedWorker() {
  const started = new Worker(new URL("./mcp_worker.js", import.meta.url), { type: "module" });
  started.onmessage = ({ data: { id, result, error } }) => {
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) resolve(result);
    else reject(new Error(error));
  };
  return started;
}

/** { server, tool, name, description, parameters } of each tool of a server. Raises an Error, as ask does. */
async function toolsOf(server, key) {
  const tools = [];
  let cursor;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const listed = await ask({ address: server, key }, "tools/list", cursor === undefined ? {} : { cursor });
    for (const { name, description = "", inputSchema } of listed.tools ?? []) {
      if (typeof name === "string") tools.push({ server, tool: name, name, description, parameters: inputSchema });
    }
    cursor = listed.nextCursor;
    if (cursor === undefined) break;
  }
  return tools;
}

/** The tools of these servers, no two of one name. given: their keys, which are asked with anew. Raises an Error. */
export async function tools(addresses = servers(), given = undefined) {
  if (!addresses.length) throw new Error("No MCP server is named: Settings has a field for addresses.");
  for (const address of addresses) {
    if (given || !lists.has(address)) {
      const list = toolsOf(address, (given ?? keys())[address]);
      list.catch(() => lists.delete(address));
      lists.set(address, list);
    }
  }
  const all = (await Promise.all(addresses.map((address) => lists.get(address)))).flat();
  const taken = new Map();
  for (const tool of all) {
    const same = (taken.get(tool.tool) ?? 0) + 1;
    taken.set(tool.tool, same);
    tool.name = same === 1 ? tool.tool : `${tool.tool}_${same}`;
  }
  return all;
}

/** Tools as a request offers them to the model. */
export function offered(all) {
  const functions = all.map(({ name, description, parameters }) => ({ name, description, parameters }));
  return functions.map((each) => ({ type: "function", function: each }));
}

/**
 * Calls a tool; returns its result as { text, pictures }, the latter as messages have them. Raises an Error with what
 * the server or the tool says against it.
 */
export async function call({ server, tool }, given, signal) {
  const {
    content = [],
    structuredContent,
    isError,
  } = await ask({ address: server, key: keys()[server] }, "tools/call", { name: tool, arguments: given }, signal);
  const pictures = [];
  const parts = content.map(({ type, text, resource, uri, mimeType, data }) => {
    if (type === "text") return text;
    const found = { name: `Picture ${pictures.length + 1} of ${tool}`, type: mimeType, data };
    if (type !== "image" || !isPicture(found) || data.length > LONGEST_PICTURE) {
      return resource?.text ?? uri ?? `[${mimeType ?? type}, which is left out]`;
    }
    pictures.push(found);
    return "";
  });
  if (!parts.length && structuredContent !== undefined) parts.push(JSON.stringify(structuredContent));
  const whole = parts.filter(Boolean).join("\n");
  if (isError) throw new Error(whole || "The tool failed.");
  return { text: whole, pictures };
}
