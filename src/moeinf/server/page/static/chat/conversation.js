// The conversation that is shown, and the requests that run: one for a conversation at most. An answer goes on while
// another conversation is shown.

import { KeyNeeded, chat as answerOf } from "../api.js";
import { offered, tools } from "../mcp/mcp_client.js";
import { answerCalls } from "../mcp/tool_rounds.js";
import { announce, countText, newId, notice, requestText, unlessGone } from "../shared.js";
import { Chat, messagesOf } from "./chat.js";
import { factsOf } from "./facts.js";
import { optionsOf } from "./settings.js";

const KEEP_MS = 3000; // from one writing of an answer that grows to the next
const MOST_ROUNDS = 25; // of calls of tools, until the person is asked to write again

export class Conversation {
  #chat = new Chat();
  #runs = new Map(); // by the conversation's id
  #forgotten = new Set(); // ids of those that were deleted
  #messages;
  #ports;

  /**
   * model(): { model, think, sees } for the next request. keep(record): keeps a conversation. onChange(): a request began or
   * ended, or another conversation is shown. onKeyNeeded(): the server refused to answer without a key.
   */
  constructor(messages, { model, keep, onChange, onKeyNeeded }) {
    this.#messages = messages;
    this.#ports = { model, keep, onChange, onKeyNeeded };
  }

  get id() {
    return this.#chat.id;
  }

  get empty() {
    return this.#chat.empty;
  }

  get hasPictures() {
    return this.#chat.path.some(({ pictures }) => pictures?.length);
  }

  get settings() {
    return this.#chat.settings;
  }

  set settings(settings) {
    this.#chat.settings = settings;
    if (!this.empty) this.#keep(this.#chat);
  }

  get busy() {
    return this.#runs.has(this.#chat.id);
  }

  /** The conversations that are being answered. */
  get answering() {
    return new Set(this.#runs.keys());
  }

  /** The names by which the server knows the requests of this page. */
  get requests() {
    return new Set([...this.#runs.values()].map(({ request }) => request));
  }

  /** What all requests of the server do now: a wait is told from its beginning, before the stream says anything. */
  told(requests) {
    for (const run of this.#runs.values()) {
      const request = requests.find(({ name }) => name === run.request);
      if (request) run.answer.status(requestText(request));
    }
  }

  /** Shows a conversation that is kept, or a new one. */
  show(record) {
    const running = record && this.#runs.get(record.id);
    this.#chat = running ? running.chat : new Chat(record);
    if (running) this.#chat.absorb(record);
    this.#redraw();
    this.#ports.onChange();
  }

  send(text, more = {}) {
    this.#messages.addQuestion(this.#chat, this.#chat.add(this.#chat.leaf, "user", text, more));
    return this.#ask(this.#chat);
  }

  /** Asks a changed question in the place of an earlier one, which stays as another version. */
  edit(node, text) {
    if (this.#refusesNow()) return undefined;
    const { pictures, files } = node;
    this.#chat.add(node.parent, "user", text, { pictures, files });
    this.#redraw();
    return this.#ask(this.#chat);
  }

  /** Another answer to the last question; the one before stays as another version. */
  regenerate() {
    if (this.busy || this.empty) return undefined;
    this.#chat.leaf = this.#chat.path.findLast(({ role }) => role === "user").id;
    this.#redraw();
    return this.#ask(this.#chat);
  }

  showVersion(node) {
    if (this.#refusesNow()) return;
    this.#chat.showVersion(node);
    this.#redraw();
    this.#messages.focusVersion(node);
    const all = this.#chat.versions(node);
    announce(`Version ${all.indexOf(node) + 1} of ${all.length}`);
    this.#keep(this.#chat);
  }

  /** Ends the answer in the conversation that is shown, or its wait for one. */
  stop() {
    this.#runs.get(this.#chat.id)?.gone.abort();
  }

  /** Gives up what is answered in a conversation that was deleted, and keeps it no more. */
  forget(id) {
    this.#forgotten.add(id);
    this.#runs.get(id)?.gone.abort();
    if (id === this.id) this.show();
  }

  /** Keeps what has come so far, as the page may be closed. */
  keepAll() {
    for (const { chat } of this.#runs.values()) this.#keep(chat);
  }

  #refusesNow() {
    if (this.busy) notice("Stop the answer first.");
    return this.busy;
  }

  #redraw() {
    const run = this.#runs.get(this.#chat.id);
    const answer = this.#messages.show(this.#chat, run?.node);
    if (answer) run.answer = answer;
  }

  async #keep(chat) {
    if (this.#forgotten.has(chat.id)) return;
    try {
      await this.#ports.keep(chat.record());
    } catch (error) {
      notice(`This conversation is not kept: ${error.message}`);
    }
  }

  async #ask(chat) {
    const asked = this.#ports.model();
    const run = { chat, gone: new AbortController(), request: newId() };
    this.#runs.set(chat.id, run);
    this.#begin(run, asked.model);
    notice("");
    this.#ports.onChange();
    this.#keep(chat);
    try {
      const known = chat.settings.tools ? await unlessGone(tools(), run.gone.signal) : [];
      await this.#read(run, asked, known);
      for (let round = 1; run.node.calls; round += 1) {
        await this.#callAll(run, known);
        if (round === MOST_ROUNDS) throw new Error(`The model has called tools ${round} times. Shall it go on?`);
        this.#messages.end(chat, run.node, run.answer);
        this.#begin(run, asked.model);
        await this.#read(run, asked, known);
      }
    } catch (error) {
      this.#fail(run, error);
    }
    await this.#end(run);
  }

  /** Puts an answer that is to come behind what the conversation has. */
  #begin(run, model) {
    run.node = run.chat.add(run.chat.leaf, "assistant", "", { model });
    if (run.chat === this.#chat) run.answer = this.#messages.addAnswer(run.node);
  }

  async #callAll({ chat, node, gone }, known) {
    const onChange = () => {
      this.#runs.get(chat.id).answer.grow();
      this.#keep(chat);
    };
    const always = (chat.settings.always ??= []);
    await answerCalls(node, { tools: known, always, onChange, signal: gone.signal });
  }

  async #read(run, { model, think, sees }, known) {
    const { node, chat } = run;
    const question = {
      model,
      messages: messagesOf(chat.path, chat.settings.system, sees),
      options: optionsOf(chat.settings),
      tools: known.length ? offered(known) : undefined,
      think,
    };
    let [kept, thinks] = [performance.now(), 0];
    const thought = () => (node.thought_s = (performance.now() - thinks) / 1000);
    for await (const { moeinf, message, done, ...last } of answerOf(question, run)) {
      if (moeinf?.phase) run.answer.status(waitText(moeinf));
      if (message?.thinking) {
        thinks ||= performance.now();
        node.thinking = (node.thinking ?? "") + message.thinking;
      }
      if (message?.content) {
        if (thinks && node.thought_s === undefined) thought();
        node.content += message.content;
      }
      for (const { function: called } of message?.tool_calls ?? []) {
        (node.calls ??= []).push({ name: called.name, arguments: called.arguments });
      }
      if (message?.thinking || message?.content || message?.tool_calls) run.answer.grow();
      if (done) {
        if (thinks && node.thought_s === undefined) thought();
        const cut = last.done_reason === "length" ? "Cut off: the limit of its length was reached" : "";
        node.ended = cut || (node.content || node.calls ? "" : "The answer is empty");
        node.facts = factsOf({ moeinf, ...last });
      }
      if (performance.now() - kept > KEEP_MS) {
        kept = performance.now();
        this.#keep(chat);
      }
    }
  }

  #fail({ node, gone }, error) {
    if (gone.signal.aborted) node.ended = "Stopped";
    else [node.ended, node.failed] = [error.message, true];
    if (error instanceof KeyNeeded) this.#ports.onKeyNeeded();
  }

  /** The page counts a request as over once its answer is kept: who closes the page then loses nothing. */
  async #end({ chat, node, answer }) {
    const words = node.content.split(/\s+/).filter(Boolean).length;
    const elsewhere = chat === this.#chat ? "" : ` in ${chat.title}`;
    const told = node.failed ? `Error: ${node.ended}` : node.ended === "Stopped" ? node.ended : "";
    announce((told || `Answer complete, ${countText(words)} words`) + elsewhere);
    this.#runs.delete(chat.id);
    this.#messages.end(chat, node, answer);
    if (!node.content && !node.thinking && !node.calls) chat.drop(node);
    await this.#keep(chat);
    this.#ports.onChange();
  }
}

/** What a stream says of a request that has no text yet. */
function waitText({ phase, done, total, ...more }) {
  return requestText({ state: phase, progress: total ? [done, total] : undefined, ...more });
}
