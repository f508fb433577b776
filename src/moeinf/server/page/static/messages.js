// Shows the conversation: what was asked, and answers while they grow.

import { MarkdownView } from "./markdown.js";
import { announce, bytesText, copyButton, countText, element, percentText, rateText, secondsText } from "./shared.js";

const NEAR_END_PX = 48;

export class Messages {
  #list;
  #scroller;

  constructor(list, scroller) {
    this.#list = list;
    this.#scroller = scroller;
  }

  addQuestion(text) {
    const said = element("div", { class: "said", dir: "auto" }, text);
    this.#list.append(element("li", { class: "question" }, element("h3", { class: "visually-hidden" }, "You"), said));
    this.#toEnd();
  }

  /** again: what its button for another answer does. */
  addAnswer(model, again) {
    this.#list.querySelector(".again")?.remove(); // only the last answer can be made anew
    const answer = new Answer(model, again, (draw) => this.#following(draw));
    this.#list.append(answer.item);
    this.#toEnd();
    return answer;
  }

  removeLast() {
    this.#list.lastElementChild.remove();
  }

  clear() {
    this.#list.replaceChildren();
  }

  /** Draws, and stays at the end of the text if the reader was there. */
  #following(draw) {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    draw();
    if (atEnd) this.#toEnd();
  }

  #toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}

class Answer {
  #text = "";
  #thoughts = "";
  #again;
  #following;
  #frame = 0;
  #thinkingSince = 0;
  #body = element("div", { class: "markdown", dir: "auto" });
  #view = new MarkdownView(this.#body);
  #status = element("p", { class: "status" }, "Waiting");
  #summary = element("summary", {}, "Thinking");
  #thoughtText = element("div", { class: "thought-text", dir: "auto" });
  #thoughtBox = element("details", { class: "thoughts", hidden: true }, this.#summary, this.#thoughtText);

  constructor(model, again, following) {
    this.#again = again;
    this.#following = following;
    const name = element("h3", { class: "visually-hidden" }, `Answer of ${model}`);
    this.item = element(
      "li",
      { class: "answer", "aria-busy": "true" },
      name,
      this.#thoughtBox,
      this.#body,
      this.#status,
    );
  }

  get text() {
    return this.#text;
  }

  /** What is going on while there is no text. */
  status(text) {
    if (!this.#text && !this.#thoughts && this.#status.textContent !== text) this.#status.textContent = text;
  }

  think(piece) {
    this.#thinkingSince ||= performance.now();
    this.#thoughts += piece;
    this.#draw();
  }

  write(piece) {
    this.#endThought();
    this.#text += piece;
    this.#draw();
  }

  /** last: the last object of the stream. */
  finish(last) {
    const cut = last.done_reason === "length" ? "Cut off: the limit of its length was reached" : "";
    const words = this.#text.split(/\s+/).filter(Boolean).length;
    announce(`Answer complete, ${countText(words)} words`);
    this.#end(cut || (this.#text ? "" : "The answer is empty"), factsOf(last));
  }

  stop() {
    announce("Stopped");
    this.#end("Stopped");
  }

  fail(message) {
    announce(`Error: ${message}`);
    this.#status.setAttribute("data-error", "");
    this.#end(message);
  }

  #end(status, facts = "") {
    cancelAnimationFrame(this.#frame);
    this.#endThought();
    this.#following(() => {
      this.#show();
      this.#status.textContent = status;
      this.#status.hidden = !status;
      this.#status.classList.add("ended");
      this.item.removeAttribute("aria-busy");
      this.item.append(this.#foot(facts));
    });
  }

  #foot(facts) {
    const foot = element("div", { class: "foot" });
    if (this.#text)
      foot.append(
        copyButton(
          () => this.#text,
          () => this.#body,
        ),
      );
    foot.append(element("button", { type: "button", class: "quiet small again", onclick: this.#again }, "Regenerate"));
    foot.append(element("span", { class: "facts" }, facts));
    return foot;
  }

  #endThought() {
    if (!this.#thinkingSince) return;
    this.#summary.textContent = `Thought for ${secondsText((performance.now() - this.#thinkingSince) / 1000)}`;
    this.#thinkingSince = 0;
  }

  #draw() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#following(() => this.#show());
    });
  }

  #show() {
    this.#status.hidden = Boolean(this.#text || this.#thoughts);
    this.#thoughtBox.hidden = !this.#thoughts.trim();
    this.#thoughtText.textContent = this.#thoughts.trim();
    this.#view.show(this.#text);
  }
}

/** One line of what an answer cost. */
function factsOf({ eval_count: tokens, eval_duration: nanoseconds, moeinf }) {
  const facts = [];
  if (tokens) facts.push(`${countText(tokens)} tokens`);
  if (tokens && nanoseconds) facts.push(`${rateText(tokens / (nanoseconds / 1e9))} tokens/s`);
  if (typeof moeinf?.hit_rate === "number") facts.push(`${percentText(moeinf.hit_rate)} hits`);
  if (moeinf?.read_bytes) facts.push(`${bytesText(moeinf.read_bytes)} read`);
  if (moeinf?.stall_s >= 0.05) facts.push(`stalled ${secondsText(moeinf.stall_s)}`);
  return facts.join(" · ");
}
