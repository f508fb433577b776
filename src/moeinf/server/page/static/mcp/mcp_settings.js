// The part of the settings that is about tools: whether this conversation has any, and where they come from.

import { byId, element } from "../shared.js";
import { addressesIn, keepServers, keys, keysOf, servers, tools } from "./mcp_client.js";

export class McpSettings {
  constructor() {
    byId("list-tools").addEventListener("click", () => this.#list());
    byId("servers").addEventListener("input", () => this.#showKeys(this.#keys()));
  }

  /** settings: of a conversation. */
  show(settings) {
    byId("tools-on").checked = Boolean(settings.tools);
    byId("servers").value = servers().join("\n");
    this.#showKeys(keys());
    byId("tool-list").replaceChildren();
    byId("tools-state").textContent = "";
  }

  /** The settings with what was chosen here; keeps the addresses. Returns null, and says why, where one is none. */
  kept(settings) {
    try {
      keepServers(byId("servers").value, this.#keys());
      if (byId("tools-on").checked && !servers().length) throw new Error("The address of a server is missing.");
    } catch (error) {
      byId("tools-state").textContent = error.message;
      byId("servers").focus();
      return null;
    }
    const { tools: _, always = [], ...others } = settings;
    return byId("tools-on").checked ? { ...others, tools: true, always } : others;
  }

  /** A field for the key of each address. */
  #showKeys(known) {
    let addresses = [];
    try {
      addresses = addressesIn(byId("servers").value);
    } catch {
      return; // an address is being typed
    }
    const fields = addresses.map((address) =>
      element(
        "label",
        {},
        `Key of ${address}, if it wants one`,
        element("input", { type: "password", autocomplete: "off", name: address, value: known[address] ?? "" }),
      ),
    );
    byId("server-keys").replaceChildren(...fields);
  }

  /** What was written into these fields, by address. */
  #keys() {
    const fields = [...byId("server-keys").querySelectorAll("input")];
    return Object.fromEntries(fields.map(({ name, value }) => [name, value]));
  }

  async #list() {
    const say = (text) => (byId("tools-state").textContent = text);
    byId("tool-list").replaceChildren();
    say("Asking");
    try {
      const addresses = addressesIn(byId("servers").value);
      if (!addresses.length) throw new Error("The address of a server is missing.");
      const found = await tools(addresses, keysOf(addresses, this.#keys()));
      const items = found.map(({ name, description }) =>
        element("li", {}, element("code", {}, name), ` ${description}`),
      );
      byId("tool-list").replaceChildren(...items);
      say(found.length === 1 ? "1 tool" : `${found.length} tools`);
    } catch (error) {
      say(error.message);
    }
  }
}
