// Pictures and text files that go along with the next message: chosen, dropped or pasted.

import { announce, button, byId, bytesText, element, notice } from "../shared.js";

const SENT_AS_IT_IS = 4e6; // bytes of a picture; a larger one is drawn anew
const LONGEST_SIDE = 4096; // pixels, of one that is drawn anew
const MOST = { text: 1e6, all: 11e6 }; // bytes; a request may have 16 MiB
const READ_BY_SERVER = ["image/png", "image/jpeg"];

export class Attachments {
  #kept = []; // { name, type, data } of pictures, { name, text } of files
  #ports;

  /** model(): { name, sees } of the one that answers next. onChange(): something was added or taken away. */
  constructor(ports) {
    this.#ports = ports;
    byId("attach").addEventListener("click", () => byId("attach-file").click());
    byId("attach-file").addEventListener("change", (event) => {
      this.add([...event.target.files]);
      event.target.value = "";
    });
    document.addEventListener("paste", (event) => {
      const text = event.clipboardData.types.includes("text/plain"); // of which a picture comes along from some programs
      if (!text) this.#taken(event, event.clipboardData);
    });
    document.addEventListener("drop", (event) => this.#taken(event, event.dataTransfer));
    for (const name of ["dragover", "dragleave", "drop"]) {
      document.addEventListener(name, (event) => {
        const files = event.dataTransfer?.types.includes("Files");
        if (files) event.preventDefault(); // the browser would show the file instead of the page
        byId("composer").classList.toggle("dropping", Boolean(files) && name === "dragover");
      });
    }
  }

  get empty() {
    return !this.#kept.length;
  }

  /** Why the model cannot be sent what is attached; "" where it can. */
  get refusal() {
    const { name, sees } = this.#ports.model();
    const picture = this.#kept.find(({ data }) => data);
    return picture && !sees ? `${name} sees no pictures: take ${picture.name} away, or choose a model that sees.` : "";
  }

  /** What is attached, as the members of a message; from then on nothing is. */
  take() {
    const [pictures, files] = [this.#kept.filter(({ data }) => data), this.#kept.filter(({ data }) => !data)];
    this.#kept = [];
    this.#draw();
    return { ...(pictures.length && { pictures }), ...(files.length && { files }) };
  }

  async add(files) {
    const refused = [];
    for (const file of files) {
      try {
        const added = file.type.startsWith("image/") ? await this.#picture(file) : await textOf(file);
        const size = [...this.#kept, added].reduce((sum, { data, text }) => sum + (data ?? text).length, 0);
        if (size > MOST.all) throw new Error(`a message may have ${bytesText(MOST.all)} of files`);
        this.#kept.push(added);
        announce(`${added.name} is attached`);
      } catch (error) {
        refused.push(`${file.name} is not attached: ${error.message}.`);
      }
    }
    notice(refused.join(" "));
    this.#draw();
  }

  #taken(event, transfer) {
    if (!transfer?.files.length || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    this.add([...transfer.files]);
    byId("prompt").focus();
  }

  async #picture(file) {
    const { name, sees } = this.#ports.model();
    if (!sees) throw new Error(`${name || "the model"} sees no pictures; choose a model that does`);
    const asItIs = READ_BY_SERVER.includes(file.type) && file.size <= SENT_AS_IT_IS;
    const url = await (asItIs ? dataUrl(file) : drawnAnew(file));
    const [, type, data] = /^data:([^;]+);base64,(.*)$/.exec(url);
    return { name: file.name || "picture", type, data };
  }

  #draw() {
    const items = this.#kept.map((each) => {
      const shown = each.data ? picture(each) : "";
      const remove = () => {
        this.#kept = this.#kept.filter((other) => other !== each);
        this.#draw();
        byId("prompt").focus();
      };
      const close = button("✕", remove, { "aria-label": `Take ${each.name} away` });
      return element("li", { class: "attached" }, shown, element("span", {}, each.name), close);
    });
    byId("attachments").replaceChildren(...items);
    byId("attachments").hidden = !items.length;
    this.#ports.onChange();
  }
}

/** A picture of a message as an element. */
export function picture({ name, type, data }) {
  return element("img", { src: `data:${type};base64,${data}`, alt: name });
}

/** A text file of a message as an element. */
export function textFile({ name, text }) {
  const shown = element("pre", { tabindex: 0, "aria-label": name }, text);
  return element("details", { class: "text-file" }, element("summary", {}, name), shown);
}

async function textOf(file) {
  if (file.size > MOST.text) throw new Error(`a text may have ${bytesText(MOST.text)}`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name: file.name, text };
  } catch {
    // not UTF-8
  }
  throw new Error("it is neither a picture nor text");
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("it cannot be read"));
    reader.readAsDataURL(file);
  });
}

/** A picture that is too large, or of a kind that the server does not read, as PNG, or as JPEG where that is large. */
async function drawnAnew(file) {
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error("this browser cannot show it");
  });
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const size = { width: Math.ceil(bitmap.width * scale), height: Math.ceil(bitmap.height * scale) };
  const canvas = Object.assign(document.createElement("canvas"), size);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const url = canvas.toDataURL("image/png");
  return file.type === "image/jpeg" || url.length > MOST.all / 2 ? canvas.toDataURL("image/jpeg", 0.92) : url;
}
