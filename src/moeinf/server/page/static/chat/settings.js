// The settings of a conversation: what the model is told first, and how its tokens are drawn.

import { McpSettings } from "../mcp/mcp_settings.js";
import { announce, byId, element } from "../shared.js";

const FIELDS = {
  temperature: { label: "Temperature", min: 0, max: 100, step: "any", help: "0 always takes the most probable token" },
  top_p: { label: "Top p", min: 0, max: 1, step: "any", help: "the most probable tokens that have this share" },
  top_k: { label: "Top k", min: 0, step: 1, help: "so many of the most probable tokens; 0: all" },
  min_p: { label: "Min p", min: 0, max: 1, step: "any", help: "of the probability of the most probable token" },
  num_predict: { label: "Most tokens", min: 1, step: 1, help: "of an answer" },
  seed: { label: "Seed", min: 0, max: 2 ** 31 - 1, step: 1, help: "the same seed draws the same answer" },
};

/** The options of a request; undefined where all are the model's own. */
export function optionsOf(settings) {
  const given = Object.keys(FIELDS).filter((name) => settings[name] !== undefined);
  return given.length ? Object.fromEntries(given.map((name) => [name, settings[name]])) : undefined;
}

export class Settings {
  #inputs;
  #ports;
  #mcp = new McpSettings();

  /** get(), set(settings): of the conversation that is shown. own(): the options that its model was made for. */
  constructor(ports) {
    this.#ports = ports;
    this.#inputs = new Map(Object.entries(FIELDS).map(([name, field]) => [name, input(name, field)]));
    byId("settings-open").addEventListener("click", () => this.#open());
    byId("settings-cancel").addEventListener("click", () => byId("settings").close());
    byId("settings-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
  }

  #open() {
    const settings = this.#ports.get();
    byId("system").value = settings.system ?? "";
    for (const [name, each] of this.#inputs) {
      each.value = settings[name] ?? "";
      each.placeholder = this.#ports.own()[name] ?? "the model's";
    }
    this.#mcp.show(settings);
    byId("settings").showModal();
  }

  #save() {
    const kept = this.#mcp.kept(this.#ports.get());
    if (!kept) return;
    const { system: _, ...settings } = kept;
    for (const name of this.#inputs.keys()) delete settings[name];
    const given = [...this.#inputs].filter(([, each]) => each.value !== "");
    const system = byId("system").value.trim();
    this.#ports.set({
      ...settings,
      ...(system && { system }),
      ...Object.fromEntries(given.map(([name, each]) => [name, each.valueAsNumber])),
    });
    byId("settings").close();
    announce("Settings kept");
  }
}

function input(name, { label, help, ...bounds }) {
  const made = element("input", {
    type: "number",
    id: `setting-${name}`,
    "aria-describedby": `help-${name}`,
    ...bounds,
  });
  const words = element("label", { for: made.id }, label);
  byId("sampling").append(element("div", {}, words, made, element("p", { class: "note", id: `help-${name}` }, help)));
  return made;
}
