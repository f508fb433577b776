// The list of conversations: search, and for the one that is shown rename, export and delete.

import { announce, button, byId, element, notice } from "../shared.js";
import { fromJson, toJson } from "./chat_json.js";
import { fromMarkdown, toMarkdown } from "./chat_markdown.js";
import * as store from "./store.js";

const SEARCH_MS = 150; // from the last letter to the search

export class ChatList {
  #show;
  #current;
  #forget;
  #drawn = 0;
  #searching = 0;
  #state = ""; // what is drawn

  /**
   * show(record): shows a conversation. forget(id): one was deleted. current(): { id, answering }, of the one that is
   * shown and of those that are being answered.
   */
  constructor({ show, forget, current }) {
    this.#show = show;
    this.#forget = forget;
    this.#current = current;
    byId("search").addEventListener("input", () => {
      clearTimeout(this.#searching);
      this.#searching = setTimeout(() => this.draw(), SEARCH_MS);
    });
    byId("export-all").addEventListener("click", () => this.#exportAll());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => {
      this.#import([...event.target.files]);
      event.target.value = "";
    });
  }

  /** Draws what the browser keeps, as far as it fits the search. */
  async draw() {
    const drawing = (this.#drawn += 1);
    if (!(await store.keeps())) {
      byId("chats-state").textContent = "This browser keeps no conversations: they last until the tab is closed.";
      return;
    }
    const words = byId("search").value.trim();
    const found = await (words ? store.found(words) : store.listed());
    if (drawing !== this.#drawn) return; // a later search is under way
    const nothing = words ? `Nothing has “${words}” in it` : "No conversation yet";
    byId("chats-state").textContent = found.length ? "" : nothing;
    if (words) announce(found.length ? `${found.length} found` : nothing);
    const { id, answering } = this.#current();
    const state = JSON.stringify([found, id, [...answering]]);
    if (state === this.#state || byId("chat-list").querySelector(".rename")) return;
    this.#state = state;
    const focused = document.activeElement?.dataset.chat;
    byId("chat-list").replaceChildren(...found.map((each) => this.#row(each)));
    if (focused)
      byId("chat-list")
        .querySelector(`[data-chat="${CSS.escape(focused)}"]`)
        ?.focus();
  }

  #row({ id, title }) {
    const { id: shown, answering } = this.#current();
    const open = async () => this.#show(await store.read(id));
    const current = id === shown ? "true" : null;
    const words = element("span", {}, title || "Untitled");
    const name = element(
      "button",
      { type: "button", class: "chat-name", "data-chat": id, "aria-current": current },
      words,
    );
    name.addEventListener("click", open);
    if (answering.has(id)) name.append(element("span", { class: "answering" }, "answering"));
    const row = element("li", {}, name);
    if (current) row.append(this.#actions(row, id, title));
    return row;
  }

  #actions(row, id, title) {
    const file = (title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
    const read = (use) => async () => use(await store.read(id));
    return element(
      "div",
      { class: "chat-actions", role: "group", "aria-label": "This conversation" },
      button("Rename", () => this.#rename(row, id, title)),
      button(
        "Markdown",
        read((record) => save(`${file}.md`, "text/markdown", toMarkdown(record))),
        {
          "aria-label": "Export as Markdown",
        },
      ),
      button(
        "JSON",
        read((record) => save(`${file}.json`, "application/json", toJson([record]))),
        {
          "aria-label": "Export as JSON",
        },
      ),
      button("Delete", () => this.#delete(id, title)),
    );
  }

  #rename(row, id, title) {
    const input = element("input", {
      type: "text",
      value: title,
      maxlength: 200,
      "aria-label": "New name",
      required: true,
    });
    const form = element("form", { class: "rename" }, input, element("button", { class: "quiet small" }, "Save"));
    const leave = async () => {
      form.remove();
      this.#state = "";
      await this.draw();
      byId("chat-list").querySelector(`[data-chat="${id}"]`)?.focus();
    };
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const record = await store.read(id);
      if (record && input.value.trim()) {
        await store.write({ ...record, title: input.value.trim() });
        this.#show(await store.read(id), { focus: false });
      }
      await leave();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it stops no answer
      leave();
    });
    row.replaceChildren(form);
    input.select();
  }

  async #delete(id, title) {
    byId("delete-name").textContent = title || "Untitled";
    byId("delete-dialog").returnValue = "";
    byId("delete-dialog").showModal();
    await new Promise((closed) => byId("delete-dialog").addEventListener("close", closed, { once: true }));
    if (byId("delete-dialog").returnValue !== "delete") return;
    this.#forget(id);
    await store.remove(id);
    await this.draw();
    announce("Deleted");
  }

  async #exportAll() {
    const records = (await store.keeps()) ? await store.readAll() : [];
    if (records.length) save("conversations.json", "application/json", toJson(records));
    else notice("There is no conversation to export.");
  }

  async #import(files) {
    let last;
    for (const file of files) {
      try {
        const text = await file.text();
        const records = /^\s*[{[]/.test(text) ? fromJson(text) : [fromMarkdown(text)];
        for (const record of records) await store.write((last = record));
        notice("");
      } catch (error) {
        notice(`${file.name} cannot be imported: ${error.message}`);
      }
    }
    if (last) this.#show(last);
    if (last) announce("Imported");
  }
}

/** Gives a file to the person before the screen. */
function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
