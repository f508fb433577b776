// Joins the parts of the page.

import { setKey } from "./api.js";
import { Attachments } from "./chat/attachments.js";
import { Conversation } from "./chat/conversation.js";
import { Messages } from "./chat/messages.js";
import { Settings } from "./chat/settings.js";
import { GetModel } from "./get_model.js";
import { ChatList } from "./kept/chat_list.js";
import * as store from "./kept/store.js";
import { Machine } from "./machine/machine.js";
import { Models } from "./models.js";
import { announce, byId, notice } from "./shared.js";
import { themeSwitch } from "./theme.js";

const SHOWN = "moeinf-conversation"; // of this tab, so that it comes back after a reload
const prompt = byId("prompt");

const models = new Models({ onChange: () => showBusy(), onKeyNeeded: askForKey, welcome });
new GetModel({ onFetched: () => models.fill({ newest: true }), onKeyNeeded: askForKey });
const messages = new Messages(byId("messages"), byId("conversation"), {
  again() {
    conversation.regenerate();
    byId("conversation").focus({ preventScroll: true }); // the button is gone
  },
  edit(node, text) {
    conversation.edit(node, text);
    byId("conversation").focus({ preventScroll: true });
  },
  showVersion: (node) => conversation.showVersion(node),
});
const conversation = new Conversation(messages, {
  model: () => models.asked,
  keep,
  onChange: showChange,
  onKeyNeeded: askForKey,
});
const list = new ChatList({
  show(record, { focus = true } = {}) {
    conversation.show(record);
    if (!wide.matches) showChats(false);
    if (focus) prompt.focus();
  },
  forget(id) {
    conversation.forget(id);
    prompt.focus();
  },
  current: () => ({ id: conversation.id, answering: conversation.answering }),
});
new Settings({
  get: () => conversation.settings,
  set: (settings) => (conversation.settings = settings),
  own: () => models.abilities.options,
});
const attachments = new Attachments({
  model: () => ({ name: models.name, sees: models.abilities.sees }),
  onChange: showBusy,
});
const machine = new Machine({
  mine: () => conversation.requests,
  onRequests: (requests) => conversation.told(requests),
});

// ---- what is kept

async function keep(record) {
  if (!(await store.keeps())) return;
  await store.write(record);
  await list.draw();
}

/** The conversation that this tab showed before it was loaded again. */
async function restore() {
  const id = sessionStorage.getItem(SHOWN);
  const record = id && (await store.keeps()) ? await store.read(id) : undefined;
  if (record && conversation.empty) conversation.show(record);
  await list.draw();
}

store.onOthers(async (id) => {
  await list.draw();
  const record = await store.read(id);
  if (id !== conversation.id || conversation.empty) return;
  if (record) conversation.show(record);
  else conversation.forget(id);
});
document.addEventListener("visibilitychange", () => document.hidden && conversation.keepAll());

// ---- the message box

function showBusy() {
  const { busy } = conversation;
  const hadFocus = document.activeElement === byId(busy ? "send" : "stop");
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  byId("send").disabled = busy || !(prompt.value.trim() || !attachments.empty) || !models.name;
  byId("welcome").hidden = !conversation.empty;
  byId("new-chat").disabled = conversation.empty;
  if (hadFocus) prompt.focus();
}

function showChange() {
  sessionStorage.setItem(SHOWN, conversation.id);
  showBusy();
  list.draw();
}

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  showBusy();
}

function send() {
  const text = prompt.value.trim();
  if ((!text && attachments.empty) || !models.name || conversation.busy) return;
  if (attachments.refusal) {
    notice(attachments.refusal);
    return;
  }
  if (conversation.hasPictures && !models.abilities.sees) {
    notice(`This conversation has pictures, and ${models.name} sees none: choose a model that does, or a new chat.`);
    return;
  }
  prompt.value = "";
  conversation.send(text, attachments.take());
  fitPrompt();
}

prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => conversation.stop());
document.addEventListener("keydown", (event) => {
  const elsewhere = document.querySelector("dialog[open]") || byId("chats").contains(event.target);
  if (event.key === "Escape" && !elsewhere) conversation.stop();
});
byId("new-chat").addEventListener("click", () => {
  conversation.show();
  announce("A new chat");
  prompt.focus();
});
byId("notice-close").addEventListener("click", () => {
  notice("");
  prompt.focus();
});

function welcome(text) {
  byId("welcome-text").textContent = text;
  announce(text);
}

// ---- the rest of the page

const wide = matchMedia("(min-width: 75rem)"); // as in base.css
wide.addEventListener("change", () => showChats(wide.matches));

function showPart(name, shown) {
  document.body.classList.toggle(`shows-${name}`, shown);
  byId(`${name}-toggle`).setAttribute("aria-expanded", shown);
}

function showChats(shown) {
  showPart("chats", shown);
  if (shown && !wide.matches) showPart("machine", false);
}

byId("chats-toggle").addEventListener("click", () => {
  showChats(!document.body.classList.contains("shows-chats"));
  if (document.body.classList.contains("shows-chats")) byId("search").focus();
});
byId("machine-toggle").addEventListener("click", () => {
  if (!wide.matches) showPart("chats", false);
  showPart("machine", !document.body.classList.contains("shows-machine"));
});

function askForKey() {
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value);
  byId("key").value = "";
  byId("key-dialog").close();
  models.fill();
});
for (const name of ["delete", "keep"]) {
  byId(`${name}-button`).addEventListener("click", () => byId("delete-dialog").close(name));
}

showChats(wide.matches);
themeSwitch(byId("theme"));
restore().catch((error) => notice(error.message));
models.fill();
machine.follow();
