// Joins the parts of the page.

import { KeyNeeded, thinks, loadedNames, modelNames, setKey } from "./api.js";
import { Conversation } from "./conversation.js";
import { Machine } from "./machine.js";
import { Messages } from "./messages.js";
import { announce, byId, element } from "./shared.js";
import { themeSwitch } from "./theme.js";

const STORED_MODEL = "moeinf-model";
const [model, think, thinkField, prompt] = ["model", "think", "think-field", "prompt"].map(byId);

const conversation = new Conversation(new Messages(byId("messages"), byId("conversation")), {
  options: () => ({ model: model.value, think: thinkField.hidden || think.disabled ? undefined : think.checked }),
  onChange: showBusy,
  onKeyNeeded: askForKey,
});
const machine = new Machine();

// ---- models

async function fillModels() {
  try {
    const [names, loaded] = await Promise.all([modelNames(), loadedNames()]);
    const stored = localStorage.getItem(STORED_MODEL);
    model.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    model.value = [stored, loaded[0], names[0]].find((name) => names.includes(name)) ?? "";
    if (!names.length) welcome("No model is stored yet. In a terminal, moeinf pull demo brings a small one.");
    await showAbilities();
  } catch (error) {
    if (error instanceof KeyNeeded) askForKey();
    else welcome(error.message);
  }
  model.disabled = !model.options.length;
  showBusy();
}

/** Offers thinking where the model has a switch for it, and shows where a model always thinks. */
async function showAbilities() {
  const name = model.value;
  thinkField.hidden = true; // until it is known
  const does = name ? await thinks(name) : "never";
  if (name !== model.value) return;
  think.disabled = does === "always";
  think.checked ||= think.disabled;
  thinkField.title = think.disabled ? "This model always thinks: it has no switch for it." : "";
  thinkField.hidden = does === "never";
}

function welcome(text) {
  byId("welcome-text").textContent = text;
  announce(text);
}

model.addEventListener("change", async () => {
  localStorage.setItem(STORED_MODEL, model.value);
  announce(`The next answer comes from ${model.value}`);
  await showAbilities().catch((error) => announce(error.message));
});

// ---- the message box

function showBusy() {
  const { busy } = conversation;
  const hadFocus = document.activeElement === byId(busy ? "send" : "stop");
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  byId("send").disabled = busy || !prompt.value.trim() || !model.value;
  byId("welcome").hidden = !conversation.empty;
  byId("new-chat").disabled = conversation.empty;
  if (hadFocus) prompt.focus();
}

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  showBusy();
}

function send() {
  const text = prompt.value.trim();
  if (!text || !model.value || conversation.busy) return;
  prompt.value = "";
  conversation.send(text);
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
  if (event.key === "Escape" && !byId("key-dialog").open) conversation.stop();
});
byId("new-chat").addEventListener("click", () => {
  conversation.clear();
  announce("A new chat");
  showBusy();
  prompt.focus();
});

// ---- the rest of the page

byId("machine-toggle").addEventListener("click", (event) => {
  const shown = document.body.classList.toggle("shows-machine");
  event.currentTarget.setAttribute("aria-expanded", shown);
});

function askForKey() {
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value);
  byId("key").value = "";
  byId("key-dialog").close();
  fillModels();
});

themeSwitch(byId("theme"));
fillModels();
machine.follow();
