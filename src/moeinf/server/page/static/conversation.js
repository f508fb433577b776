// What was said, and the one request that may be running.

import { KeyNeeded, chat } from "./api.js";
import { requestText } from "./shared.js";

export class Conversation {
  #turns = [];
  #running = null;
  #answer = null;
  #messages;
  #options;
  #onChange;
  #onKeyNeeded;

  /**
   * options(): { model, think } for the next request. onChange(): a request began or ended. onKeyNeeded(): the server
   * refused to answer without a key.
   */
  constructor(messages, { options, onChange, onKeyNeeded }) {
    this.#messages = messages;
    this.#options = options;
    this.#onChange = onChange;
    this.#onKeyNeeded = onKeyNeeded;
  }

  get busy() {
    return this.#running !== null;
  }

  get empty() {
    return this.#turns.length === 0;
  }

  send(text) {
    this.#turns.push({ role: "user", content: text });
    this.#messages.addQuestion(text);
    return this.#ask();
  }

  /** Another answer in the place of the last one. */
  regenerate() {
    if (this.busy || this.empty) return undefined;
    if (this.#turns.at(-1).role === "assistant") this.#turns.pop();
    this.#messages.removeLast();
    return this.#ask();
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#turns = [];
    this.#answer = null;
    this.#messages.clear();
  }

  /** The turns for the model: a question that was never answered is left out, as templates want roles to alternate. */
  #history() {
    return this.#turns.filter((turn, at) => turn.role === "assistant" || this.#turns[at + 1]?.role !== "user");
  }

  async #ask() {
    const { model, think } = this.#options();
    const turns = this.#turns;
    const running = (this.#running = new AbortController());
    const answer = (this.#answer = this.#messages.addAnswer(model, () => this.regenerate()));
    this.#onChange();
    try {
      await this.#read(chat(model, this.#history(), think, running.signal), answer);
    } catch (error) {
      if (running.signal.aborted) answer.stop();
      else answer.fail(error.message);
      if (error instanceof KeyNeeded) this.#onKeyNeeded();
    }
    if (answer.text) turns.push({ role: "assistant", content: answer.text });
    if (this.#running === running) this.#running = null;
    this.#onChange();
  }

  async #read(pieces, answer) {
    for await (const piece of pieces) {
      if (piece.moeinf?.phase) answer.status(waitText(piece.moeinf));
      if (piece.message?.thinking) answer.think(piece.message.thinking);
      if (piece.message?.content) answer.write(piece.message.content);
      if (piece.done) answer.finish(piece);
    }
  }
}

/** What a stream says of a request that has no text yet. */
function waitText({ phase, done, total, ...more }) {
  return requestText({ state: phase, progress: total ? [done, total] : undefined, ...more });
}
