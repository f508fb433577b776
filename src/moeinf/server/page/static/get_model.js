// Fetches a model: the names that there are, the forms of one on this machine, and how far a fetch has come.

import { KeyNeeded, availableModels, formsOf, pull } from "./api.js";
import { announce, byId, bytesText, element, percentText, rateText, secondsText } from "./shared.js";

const [dialog, name, state, forms, progress] = ["get", "get-name", "get-state", "get-forms", "get-progress"].map(byId);
const [look, fetchButton, stop, close] = ["get-look", "get-fetch", "get-stop", "get-close"].map(byId);

export class GetModel {
  #ports;
  #gone = null; // of what goes on

  /** onFetched(): a model is there that was not. onKeyNeeded(): as for Conversation. */
  constructor(ports) {
    this.#ports = ports;
    byId("get-open").addEventListener("click", () => this.#open());
    name.addEventListener("input", () => this.#forget());
    fetchButton.addEventListener("click", () => this.#during(() => this.#fetch()));
    byId("get-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#during(() => this.#look());
    });
    stop.addEventListener("click", () => this.#gone?.abort());
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("cancel", (event) => this.#gone && event.preventDefault());
    this.#forget();
  }

  /** What /api/pull is to be given; undefined while nothing was looked at. */
  get #chosen() {
    return forms.hidden ? fetchButton.dataset.name : forms.querySelector("input:checked")?.value;
  }

  async #open() {
    dialog.showModal();
    if (byId("get-names").options.length) return;
    try {
      const known = await availableModels();
      byId("get-names").replaceChildren(...known.map((model) => element("option", { value: model.name }, about(model))));
    } catch (error) {
      if (error instanceof KeyNeeded) {
        dialog.close();
        this.#ports.onKeyNeeded();
      } else this.#say(error.message);
    }
  }

  #forget() {
    delete fetchButton.dataset.name;
    forms.hidden = true;
    forms.tBodies[0].replaceChildren();
    state.textContent = "";
    this.#enable();
  }

  #enable() {
    const busy = this.#gone !== null;
    name.disabled = close.disabled = busy;
    look.disabled = busy || !name.value.trim();
    fetchButton.disabled = busy || !this.#chosen;
    stop.hidden = !busy;
    for (const each of forms.querySelectorAll("input")) each.disabled = busy || "fault" in each.dataset;
  }

  #say(text) {
    state.textContent = text;
  }

  async #during(work) {
    this.#gone = new AbortController();
    this.#enable();
    try {
      await work();
    } catch (error) {
      this.#say(error.name === "AbortError" ? "Stopped. What was fetched is kept: fetching again goes on." : error.message);
    }
    this.#gone = null;
    progress.hidden = true;
    this.#enable();
  }

  async #look() {
    const wanted = name.value.trim();
    this.#forget();
    this.#say(`Looking for ${wanted}. The first time, this machine is measured, for a quarter of a minute.`);
    const found = await formsOf(wanted, this.#gone.signal);
    if (!found.forms.length) {
      fetchButton.dataset.name = wanted;
      this.#say(`${wanted} is fetched as it is, if there is such a model.`);
      return;
    }
    forms.tBodies[0].replaceChildren(...found.forms.map((form) => row(form, form.tag === found.taken)));
    forms.hidden = false;
    const best = `${found.taken} suits this machine best, of ${bytesText(found.disk_free_bytes)} of free disk.`;
    this.#say([best, ...ofQuality(found), ...found.notes].join(" "));
  }

  async #fetch() {
    const wanted = this.#chosen;
    this.#say(`Fetching ${wanted}`);
    announce(`Fetching ${wanted}`);
    let first = { status: "" }; // of the lines about this file
    for await (const { status, total, completed } of pull(wanted, this.#gone.signal)) {
      if (status !== first.status) first = { status, completed: completed ?? 0, at: performance.now() };
      const known = total > 0;
      progress.hidden = !known;
      if (known) [progress.max, progress.value] = [total, completed ?? 0];
      const far = `: ${bytesText(completed ?? 0)} of ${bytesText(total)}${rateOf(first, completed, total)}`;
      this.#say(status + (known ? far : ""));
    }
    await this.#ports.onFetched();
    this.#say(`${wanted} is here.`);
  }
}

/** How fast it goes and how long it takes; "" in the first seconds. first: bytes that were there, and when. */
function rateOf(first, completed, total) {
  const seconds = (performance.now() - first.at) / 1000;
  const rate = (completed - first.completed) / seconds;
  return seconds > 2 && rate > 0 ? `, ${bytesText(rate)}/s, ${secondsText((total - completed) / rate)} left` : "";
}

/** What stands beside a name: how large the model is, and how fast here, where that is known. */
function about({ parameters, bytes_at_4_bits: size, tokens_per_s: rate }) {
  if (!size) return "";
  const speed = rate ? `, about ${rateText(rate)} tokens/s here` : "";
  return `${rateText(parameters / 1e9)} billion weights, ${bytesText(size)} at 4 bits${speed}`;
}

/** What the column KL says, where anything was measured. */
function ofQuality({ forms: given, kl_measured_on: model }) {
  if (!given.some((form) => form.kl_about)) return [];
  return [`KL is about how far predictions are from those of 16 bits, as measured on ${model}.`];
}

/** Nothing where nothing was measured. */
function klText(kl) {
  return kl ? `~${kl}` : kl === null ? "" : "0";
}

function row(form, taken) {
  const fault = form.fault || (form.fits_disk ? "" : "the disk is too full");
  const id = `form-${form.tag}`;
  const box = element("input", { type: "radio", name: "form", id, value: form.name, checked: taken && !fault });
  if (fault) box.dataset.fault = fault;
  box.disabled = Boolean(fault);
  const held = form.resident_share === null ? "" : percentText(form.resident_share);
  const time = form.download_s;
  const speed = form.decode_tokens_per_s === null ? "" : rateText(form.decode_tokens_per_s);
  return element(
    "tr",
    {},
    element("td", {}, element("label", { class: "check", for: id }, box, form.tag)),
    element("td", {}, bytesText(form.download_bytes) + (time ? `, ${secondsText(time)}` : "")),
    element("td", {}, bytesText(form.store_bytes)),
    element("td", {}, klText(form.kl_about)),
    element("td", {}, held),
    element("td", {}, fault || speed),
  );
}
