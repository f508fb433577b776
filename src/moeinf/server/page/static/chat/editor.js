// The box in which an earlier message is changed, in its place.

import { button, element } from "../shared.js";

/** done(text): it is to be sent. left(): it stays as it was. */
export function editor(text, { done, left }) {
  const box = element("textarea", {
    "aria-label": "Change the message",
    rows: Math.min(12, text.split("\n").length + 1),
  });
  box.value = text;
  const send = () => {
    if (box.value.trim()) done(box.value.trim());
  };
  const keep = element("button", { type: "submit", class: "main small" }, "Send");
  const form = element("form", { class: "editor" }, box, element("div", {}, button("Cancel", left), keep));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation(); // it stops no answer
      left();
    } else if (event.key === "Enter" && event.target === box && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  requestAnimationFrame(() => box.focus());
  return form;
}
