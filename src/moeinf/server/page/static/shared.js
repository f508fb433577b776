// What the parts of the page share: elements, announcements, copying, and numbers as people read them.
// Text is text: nothing here reads HTML.

/** element("a", { class: "x", onclick: f }, "text", child): properties that begin with "on" are listeners. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  setAll(made, properties);
  made.append(...children);
  return made;
}

const within =
  (namespace) =>
  (name, properties = {}, ...children) => {
    const made = document.createElementNS(namespace, name);
    setAll(made, properties);
    made.append(...children);
    return made;
  };

/** The same for SVG, and for MathML. */
export const svg = within("http://www.w3.org/2000/svg");
export const math = within("http://www.w3.org/1998/Math/MathML");

/** A quiet button; more: properties of its element. */
export function button(words, onclick, more = {}) {
  return element("button", { type: "button", class: "quiet small", onclick, ...more }, words);
}

function setAll(made, properties) {
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
}

/** The element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** A name that nobody else has; crypto.randomUUID() is for https alone. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The promise, or the reason why `signal` has given it up, whichever comes first. */
export function unlessGone(promise, signal) {
  const gone = new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
  return Promise.race([promise, gone]);
}

let announcing;

/** Tells users of a screen reader, once they have a pause. */
export function announce(text) {
  clearTimeout(announcing);
  byId("announcer").textContent = "";
  announcing = setTimeout(() => (byId("announcer").textContent = text), 50); // a change is what is read out
}

/** Says in one line above the message box what went wrong; "" takes it away. */
export function notice(text) {
  byId("notice").hidden = !text;
  byId("notice-text").textContent = text;
}

/** Copies text; where a browser refuses (no https), selects it in `shown`. Returns the word for what was done. */
export async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied";
  } catch {
    getSelection().selectAllChildren(shown);
    return "Selected";
  }
}

/** A button that copies what text() gives, and says so for a moment. */
export function copyButton(text, shown) {
  const made = button("Copy", async () => {
    made.textContent = await copy(text(), shown());
    announce(made.textContent);
    setTimeout(() => (made.textContent = "Copy"), 1500);
  });
  return made;
}

// ---- numbers

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** 1234567 -> "1.2 MB" */
export function bytesText(count) {
  let unit = 0;
  while (count >= 999.5 && unit < UNITS.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${unit && count < 99.95 ? count.toFixed(1) : Math.round(count)} ${UNITS[unit]}`;
}

/** 0.803 -> "80 %" */
export function percentText(share) {
  return `${Math.round(share * 100)} %`;
}

/** 12.34 -> "12.3", 123.4 -> "123" */
export function rateText(rate) {
  return rate < 99.95 ? rate.toFixed(1) : countText(Math.round(rate));
}

/** 12345 -> "12,345" */
export function countText(count) {
  return count.toLocaleString("en");
}

/** 75.2 -> "1 min 15 s", 7260 -> "2 h 1 min" */
export function secondsText(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** What a request does, and how long until it goes on. progress: done, and in all. */
export function requestText({ state, model, position, eta_s, progress, tokens }) {
  const eta = typeof eta_s === "number" ? ` · about ${secondsText(eta_s)}` : "";
  const [done, total] = progress ?? [0, 0];
  switch (state) {
    case "queued":
      return `Waiting, place ${countText(position)}${eta}`;
    case "loading":
      return `Loading ${model ?? ""}`.trim() + (total ? `, ${percentText(done / total)}` : "") + eta;
    case "prefill":
      return `Reading the prompt${total ? `, ${countText(done)} of ${countText(total)} tokens` : ""}${eta}`;
    case "decode":
      return tokens ? `Answering, ${countText(tokens)} tokens` : "Answering";
    case "paused":
      return "Paused for a chat";
    default:
      return state === "offline" ? "Not connected" : "Idle";
  }
}
