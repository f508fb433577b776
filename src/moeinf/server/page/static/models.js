// Which model answers next, and what it does.

import { KeyNeeded, abilities, loadedNames, modelNames } from "./api.js";
import { announce, byId, element } from "./shared.js";

const STORED = "moeinf-model";
const UNKNOWN = { thinks: "never", sees: false, chats: true, options: {} };
const [model, think, thinkField] = ["model", "think", "think-field"].map(byId);

export class Models {
  #ports;
  abilities = UNKNOWN;

  /** onChange(): another model answers next. onKeyNeeded(): as for Conversation. welcome(text): instead of a model. */
  constructor(ports) {
    this.#ports = ports;
    model.addEventListener("change", async () => {
      localStorage.setItem(STORED, model.value);
      announce(`The next answer comes from ${model.value}`);
      await this.#showAbilities().catch((error) => announce(error.message));
      ports.onChange();
    });
  }

  get name() {
    return model.value;
  }

  /** For a request: its model, whether to think where that can be chosen, and whether the model sees pictures. */
  get asked() {
    const thinks = thinkField.hidden || think.disabled ? undefined : think.checked;
    return { model: model.value, think: thinks, sees: this.abilities.sees };
  }

  /** newest: chooses the one that has come. */
  async fill({ newest = false } = {}) {
    try {
      const before = new Set([...model.options].map((option) => option.value));
      const [names, loaded] = await Promise.all([modelNames(), loadedNames()]);
      const come = newest ? names.find((name) => !before.has(name)) : undefined;
      if (come) localStorage.setItem(STORED, come);
      const stored = localStorage.getItem(STORED);
      model.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
      model.value = [stored, loaded[0], names[0]].find((name) => names.includes(name)) ?? "";
      if (!names.length) this.#ports.welcome("No model is stored yet: Get a model, above, fetches one.");
      else if (newest) this.#ports.welcome("The model runs on this machine, and nothing you write leaves it.");
      await this.#showAbilities();
    } catch (error) {
      if (error instanceof KeyNeeded) this.#ports.onKeyNeeded();
      else this.#ports.welcome(error.message);
    }
    model.disabled = !model.options.length;
    this.#ports.onChange();
  }

  /** Offers thinking where the model has a switch for it, and shows where a model always thinks. */
  async #showAbilities() {
    const name = model.value;
    thinkField.hidden = true; // until it is known
    this.abilities = UNKNOWN;
    const known = name ? await abilities(name) : UNKNOWN;
    if (name !== model.value) return;
    this.abilities = known;
    think.disabled = known.thinks === "always";
    think.checked ||= think.disabled;
    thinkField.title = think.disabled ? "This model always thinks: it has no switch for it." : "";
    thinkField.hidden = known.thinks === "never";
    byId("base-model").hidden = known.chats;
  }
}
