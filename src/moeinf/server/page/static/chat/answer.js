// One answer on the page, while it grows and when it is whole. What it shows is its node: content, thinking, thought_s,
// calls, facts, and `ended` once it is: "" or why it is not whole; `failed` says that this is an error.

import { copyButton, button, element, secondsText } from "../shared.js";
import { MarkdownView } from "../text/markdown.js";
import { ToolCard } from "./tool_calls.js";

export class Answer {
  #node;
  #following;
  #frame = 0;
  #body = element("div", { class: "markdown", dir: "auto" });
  #view = new MarkdownView(this.#body);
  #calls = element("div", { class: "calls" });
  #cards = new Map(); // by call
  #status = element("p", { class: "status" }, "Waiting");
  #summary = element("summary", {}, "Thinking");
  #thoughtText = element("div", { class: "thought-text", dir: "auto" });
  #thoughtBox = element("details", { class: "thoughts", hidden: true }, this.#summary, this.#thoughtText);

  /** following(draw): draws, and stays at the end of the text if the reader was there. */
  constructor(node, following) {
    this.#node = node;
    this.#following = following;
    const name = element("h3", { class: "visually-hidden" }, `Answer of ${node.model || "a model"}`);
    const parts = [name, this.#thoughtBox, this.#body, this.#calls, this.#status];
    this.item = element("li", { class: "answer", "aria-busy": "true" }, ...parts);
    this.#show();
  }

  /** What is going on while there is no text. */
  status(text) {
    const { content, thinking, calls } = this.#node;
    if (!content && !thinking && !calls && this.#status.textContent !== text) this.#status.textContent = text;
  }

  /** Draws the node with the next frame. */
  grow() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#following(() => this.#show());
    });
  }

  /** Draws it as it has ended; again: what its button for another answer does; versions: the choice among several. */
  end(again, versions) {
    const { ended = "Broken off", failed } = this.#node;
    cancelAnimationFrame(this.#frame);
    this.#following(() => {
      this.#show();
      this.#status.textContent = ended;
      this.#status.hidden = !ended;
      this.#status.classList.add("ended");
      this.#status.toggleAttribute("data-error", Boolean(failed));
      this.item.removeAttribute("aria-busy");
      this.item.append(this.#foot(again, versions));
    });
  }

  #foot(again, versions) {
    const foot = element("div", { class: "foot" });
    const { content, facts } = this.#node;
    if (content) {
      foot.append(
        copyButton(
          () => content,
          () => this.#body,
        ),
      );
    }
    if (again) foot.append(button("Regenerate", again, { class: "quiet small again" }));
    if (versions) foot.append(versions);
    foot.append(element("span", { class: "facts" }, facts ?? ""));
    return foot;
  }

  #show() {
    const { content, thinking = "", thought_s, calls = [] } = this.#node;
    this.#status.hidden = Boolean(content || thinking || calls.length);
    this.#thoughtBox.hidden = !thinking.trim();
    this.#thoughtText.textContent = thinking.trim();
    if (thought_s !== undefined) this.#summary.textContent = `Thought for ${secondsText(thought_s)}`;
    this.#view.show(content);
    for (const call of calls) {
      if (!this.#cards.has(call)) {
        this.#cards.set(call, new ToolCard(call));
        this.#calls.append(this.#cards.get(call).item);
      }
      this.#cards.get(call).show();
    }
  }
}
