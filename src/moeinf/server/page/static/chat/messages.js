// Shows one path of a conversation: what was asked, and the answers.

import { button, element } from "../shared.js";
import { Answer } from "./answer.js";
import { picture, textFile } from "./attachments.js";
import { editor } from "./editor.js";

const NEAR_END_PX = 48;

export class Messages {
  #list;
  #scroller;
  #actions;
  #atEnd = true; // where the reader is

  /** actions: again(), edit(node, text), and showVersion(node). */
  constructor(list, scroller, actions) {
    this.#list = list;
    this.#scroller = scroller;
    this.#actions = actions;
    scroller.addEventListener("scroll", () => (this.#atEnd = this.#isAtEnd()));
    new ResizeObserver(() => this.#atEnd && this.#toEnd()).observe(scroller); // a phone is turned
  }

  /** Draws a conversation. Returns the Answer of `growing`, a message that is being written, if it is shown. */
  show(chat, growing = null) {
    this.#list.replaceChildren();
    let grows = null;
    for (const node of chat.path) {
      if (node.role === "user") this.addQuestion(chat, node);
      else {
        const answer = this.addAnswer(node);
        if (node === growing) grows = answer;
        else this.end(chat, node, answer);
      }
    }
    const last = chat.path.at(-1);
    if (last?.role === "user" && !growing) this.#addUnanswered();
    return grows;
  }

  addQuestion(chat, node) {
    const { content, pictures = [], files = [] } = node;
    const item = element("li", { class: "question" }, element("h3", { class: "visually-hidden" }, "You"));
    item.append(...pictures.map(picture), ...files.map(textFile));
    if (content) item.append(element("div", { class: "said", dir: "auto" }, content));
    const edit = () =>
      item.replaceChildren(
        editor(node.content, {
          done: (text) => this.#actions.edit(node, text),
          left: () => {
            item.replaceChildren(...whole);
            item.querySelector(".edit").focus();
          },
        }),
      );
    const foot = element("div", { class: "question-foot" }, button("Edit", edit, { class: "quiet small edit" }));
    const versions = this.#versions(chat, node);
    if (versions) foot.append(versions);
    item.append(foot);
    const whole = [...item.children];
    this.#append(item);
  }

  addAnswer(node) {
    const answer = new Answer(node, (draw) => this.#followed(draw));
    this.#append(answer.item);
    return answer;
  }

  /** Shows that an answer has ended. */
  end(chat, node, answer) {
    const last = node === chat.path.at(-1) && this.#actions.again;
    answer.end(last, this.#versions(chat, node));
  }

  /** Gives the focus back after a change of versions. */
  focusVersion(node) {
    this.#list.querySelector(`[data-node="${node.id}"] button:enabled`)?.focus();
  }

  /** A question that has no answer: the page was closed before one came. */
  #addUnanswered() {
    const again = button("Regenerate", this.#actions.again, { class: "quiet small again" });
    const status = element("p", { class: "status ended" }, "There is no answer yet");
    const foot = element("div", { class: "foot" }, again);
    this.#append(element("li", { class: "answer unanswered" }, status, foot));
  }

  /** Only the last answer can be made anew. */
  #append(item) {
    for (const each of this.#list.querySelectorAll(".again, .unanswered")) each.remove();
    this.#list.append(item);
    this.#toEnd();
  }

  /** The choice among messages that stand in the same place; null for a single one. */
  #versions(chat, node) {
    const all = chat.versions(node);
    if (all.length < 2) return null;
    const at = all.indexOf(node);
    const step = (words, name, to) =>
      button(words, () => this.#actions.showVersion(all[to]), { "aria-label": name, disabled: !all[to] });
    return element(
      "span",
      { class: "versions", role: "group", "aria-label": "Versions", "data-node": node.id },
      step("‹", "Earlier version", at - 1),
      element("span", {}, `${at + 1} of ${all.length}`),
      step("›", "Later version", at + 1),
    );
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  }

  #followed(draw) {
    const atEnd = this.#isAtEnd();
    draw();
    if (atEnd) this.#toEnd();
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}
