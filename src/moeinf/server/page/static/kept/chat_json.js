// Conversations as a JSON file: all their branches, settings and pictures. What is read may come from anybody, so that
// each member is looked at; whom the model may call is not taken over.

import { isPicture } from "../chat/chat.js";
import { newId } from "../shared.js";

const KIND = "moeinf conversations";
const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "num_predict", "seed"];

/** The text of a file with these records. */
export function toJson(records) {
  return `${JSON.stringify({ kind: KIND, version: 1, conversations: records }, null, 1)}\n`;
}

/** The records in a file, under new ids. Raises an Error whose message says what is wrong. */
export function fromJson(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Error("it is no JSON");
  }
  if (Array.isArray(given?.messages)) return [recordOf({ title: given.title, nodes: chained(given.messages) })];
  if (given?.kind !== KIND || !Array.isArray(given.conversations))
    throw new Error("it holds no conversations of moeinf");
  return given.conversations.map(recordOf);
}

/** Messages of a request, as APIs have them, one behind the other. */
function chained(messages) {
  const said = messages.filter((each) => ["user", "assistant"].includes(each?.role) && text(each.content));
  return said.map(({ role, content }, at) => ({ id: at, parent: at ? at - 1 : null, role, content }));
}

function recordOf(given) {
  if (!Array.isArray(given?.nodes) || !given.nodes.length) throw new Error("one of its conversations has no messages");
  const ids = new Map();
  const nodes = given.nodes.map((node) => {
    if (!["user", "assistant"].includes(node?.role) || typeof node.content !== "string") {
      throw new Error("one of its messages has no role or no text");
    }
    if (node.parent !== null && !ids.has(node.parent)) throw new Error("one of its messages answers none");
    const made = nodeOf(node, ids.get(node.parent) ?? null);
    ids.set(node.id, made.id);
    return made;
  });
  const settings = settingsOf(given.settings ?? {});
  const title = text(given.title) || nodes[0].content.trim().slice(0, 60) || "Imported";
  return {
    id: newId(),
    title,
    changed: number(given.changed) ?? Date.now(),
    settings,
    leaf: ids.get(given.leaf),
    nodes,
  };
}

function nodeOf(node, parent) {
  const made = { id: newId(), parent, role: node.role, content: node.content, at: number(node.at) ?? Date.now() };
  if (node.role === "user") {
    made.pictures = picturesOf(node);
    made.files = list(node.files).map((file) => ({ name: text(file.name), text: text(file.text) }));
    return made;
  }
  const known = { model: text(node.model), thinking: text(node.thinking), facts: text(node.facts) };
  return { ...made, ...known, ended: text(node.ended), calls: list(node.calls).map(callOf) };
}

function callOf({ server, name, arguments: given, result, state, pictures }) {
  const known = ["done", "refused", "failed"].includes(state) ? state : "failed";
  const told = { server: text(server), name: text(name), arguments: given ?? {}, result: text(result), state: known };
  return { ...told, pictures: picturesOf({ pictures }) };
}

function picturesOf({ pictures }) {
  const sound = list(pictures).filter(isPicture);
  return sound.map(({ name, type, data }) => ({ name: text(name), type, data }));
}

function settingsOf({ system, ...given }) {
  const sampling = SAMPLING.filter((name) => number(given[name]) !== undefined).map((name) => [name, given[name]]);
  return { ...Object.fromEntries(sampling), ...(text(system) && { system: text(system) }) };
}

const text = (value) => (typeof value === "string" ? value : "");
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : undefined);
const list = (value) => (Array.isArray(value) ? value.filter((each) => each && typeof each === "object") : []);
