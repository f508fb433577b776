// Calls of tools within an answer: their cards on the page, and the person's word, without which none is made.

import { announce, button, element, unlessGone } from "../shared.js";
import { picture } from "./attachments.js";

const WORDS = {
  asked: "asks for your word",
  running: "is called",
  done: "was called",
  failed: "failed",
  refused: "was not allowed",
  open: "was not called",
};

const asking = new WeakMap(); // what takes the word, by call

/** Waits for the person's word: "once", "always" or "refuse". Raises an AbortError where the answer is stopped. */
export function word(call, signal) {
  announce(`The model asks to call ${call.name}. Your answer is wanted above the message box.`);
  const said = new Promise((resolve) => asking.set(call, resolve));
  return unlessGone(said, signal).finally(() => asking.delete(call));
}

export class ToolCard {
  #call;
  #state = "";
  #words = element("span", { class: "call-state" });
  #result = element("pre", { tabindex: 0, "aria-label": "Result", hidden: true });
  #pictures = element("div", { class: "call-pictures" });
  #details;
  item;

  constructor(call) {
    this.#call = call;
    const given = JSON.stringify(call.arguments, null, 2);
    const name = element("code", {}, call.name);
    const summary = element("summary", {}, name, " ", this.#words);
    const told = element("pre", { tabindex: 0, "aria-label": "Arguments" }, given);
    this.#details = element("details", {}, summary, told, this.#result, this.#pictures);
    this.item = element("div", { class: "call", role: "group", "aria-label": `Call of ${call.name}` }, this.#details);
  }

  /** Draws the call as it stands. */
  show() {
    const { state, result, pictures = [] } = this.#call;
    const shown = state === undefined || (state === "asked" && !asking.has(this.#call)) ? "open" : state;
    if (shown === this.#state) return;
    this.#state = shown;
    this.#words.textContent = WORDS[shown];
    this.#details.open = shown === "asked";
    this.#result.hidden = !result;
    this.#result.textContent = result ?? "";
    this.#pictures.replaceChildren(...pictures.map(picture));
    const question = this.item.querySelector(".call-ask");
    if (question?.contains(document.activeElement)) this.#details.firstElementChild.focus();
    question?.remove();
    if (shown === "asked") this.item.append(this.#question());
  }

  #question() {
    const { name, server } = this.#call;
    const say = (answer) => () => asking.get(this.#call)?.(answer);
    return element(
      "div",
      { class: "call-ask" },
      element("p", {}, `May ${name} of ${server} be called with these arguments?`),
      button("Call it", say("once"), { class: "main small" }),
      button("Always in this conversation", say("always")),
      button("Refuse", say("refuse")),
    );
  }
}
