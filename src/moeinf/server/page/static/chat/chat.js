// One conversation as data: a tree of messages, of which one path is shown. It knows neither the page nor the server.

import { newId } from "../shared.js";

const LONGEST_TITLE = 60;

/** role: "user" or "assistant". More members: of a user pictures and files, of an assistant what Answer shows. */
const newNode = (parent, role, content, more) => ({ id: newId(), parent, role, content, at: Date.now(), ...more });

export class Chat {
  #nodes = new Map(); // by id; a parent stands before its children

  /** record: as record() gave it. */
  constructor(record = {}) {
    this.id = record.id ?? newId();
    this.title = record.title ?? "";
    this.changed = record.changed ?? Date.now();
    this.settings = record.settings ?? {};
    for (const node of record.nodes ?? []) this.#nodes.set(node.id, node);
    this.leaf = this.#nodes.has(record.leaf) ? record.leaf : (record.nodes?.at(-1)?.id ?? null);
  }

  /** What is kept of it, as JSON has it. An answer of which nothing has come yet is not. */
  record() {
    const { id, title, changed, settings } = this;
    const nodes = [...this.#nodes.values()].filter(isSaid);
    return { id, title, changed, settings, leaf: this.path.findLast(isSaid)?.id ?? null, nodes };
  }

  /** Takes over what another tab has written to it. */
  absorb({ title, nodes }) {
    this.title = title;
    for (const node of nodes) if (!this.#nodes.has(node.id)) this.#nodes.set(node.id, node);
  }

  get empty() {
    return this.#nodes.size === 0;
  }

  /** The messages that are shown, the first one first. */
  get path() {
    const path = [];
    for (let node = this.#nodes.get(this.leaf); node; node = this.#nodes.get(node.parent)) path.unshift(node);
    return path;
  }

  /** Adds a message behind `parent`, or as a first one behind null, and shows it. */
  add(parent, role, content, more = {}) {
    const node = newNode(parent, role, content, more);
    this.#nodes.set(node.id, node);
    [this.leaf, this.changed] = [node.id, Date.now()];
    this.title ||= titleOf(content || more.files?.[0]?.name || more.pictures?.[0]?.name || "");
    return node;
  }

  /** Takes back a message that has nothing behind it. */
  drop(node) {
    this.#nodes.delete(node.id);
    if (this.leaf === node.id) this.leaf = node.parent;
  }

  /** The messages that stand in the same place, this one among them, the oldest first. */
  versions(node) {
    return [...this.#nodes.values()].filter(({ parent }) => parent === node.parent);
  }

  /** Shows the path through this message that was written to last. */
  showVersion(node) {
    const newest = (id) => [...this.#nodes.values()].findLast(({ parent }) => parent === id);
    let at = node;
    for (let next = node; next; next = newest(at.id)) at = next;
    this.leaf = at.id;
  }
}

function isSaid({ role, content, thinking, calls }) {
  return role === "user" || Boolean(content || thinking || calls?.length);
}

export function titleOf(text) {
  const line = text.trim().split("\n", 1)[0].trim();
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line;
}

/** Whether this is one that the server reads: { type, data }, in base64. */
export function isPicture({ type, data }) {
  return typeof data === "string" && /^image\/(png|jpeg)$/.test(type) && /^[A-Za-z0-9+/]+={0,2}$/.test(data);
}

/**
 * The messages of a path as /api/chat takes them. A question that was never answered is left out, as templates want
 * roles to alternate; thoughts go along within the answer to the last question alone. sees: whether the model can be
 * given the pictures of results.
 */
export function messagesOf(path, system = "", sees = false) {
  const said = path.filter((node) => node.role === "user" || node.content || node.calls?.length);
  const kept = said.filter((node, at) => node.role === "assistant" || said[at + 1]?.role !== "user");
  const last = kept.findLastIndex(({ role }) => role === "user");
  const messages = kept.flatMap((node, at) =>
    node.role === "user" ? [questionOf(node)] : answerOf(node, at > last, sees),
  );
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

function questionOf({ content, pictures = [], files = [] }) {
  const fenced = files.map(({ name, text }) => {
    const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  const whole = [...fenced, content].filter(Boolean).join("\n\n");
  return { role: "user", content: whole, ...(pictures.length && { images: pictures.map(({ data }) => data) }) };
}

function answerOf({ content, thinking, calls = [] }, current, sees) {
  const answer = { role: "assistant", content };
  if (!calls.length) return [answer];
  if (current && thinking) answer.thinking = thinking;
  answer.tool_calls = calls.map(({ name, arguments: given }) => ({ function: { name, arguments: given } }));
  return [answer, ...calls.map((call) => resultOf(call, sees))];
}

function resultOf({ name, result, pictures = [] }, sees) {
  const unseen = sees ? [] : pictures.map(() => "[A picture, which you cannot see]");
  const content = [result ?? "There is no result: the call was broken off.", ...unseen].filter(Boolean).join("\n");
  const images = sees && pictures.length && { images: pictures.map(({ data }) => data) };
  return { role: "tool", tool_name: name, content, ...images };
}
