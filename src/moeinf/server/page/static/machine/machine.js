// What the machine does now, beside the chat: follows /api/live for as long as the page is in sight.

import { live } from "../api.js";
import { Chart } from "./chart.js";
import { HeatMap } from "./heat_map.js";
import { byId, bytesText, countText, element, percentText, rateText, requestText, svg } from "../shared.js";

const RETRY_MS = { first: 1000, most: 10000 };
const IDLE = { state: "idle" };

export class Machine {
  #heat = new HeatMap();
  #charts = {
    tokens_per_s: new Chart(byId("charts"), "Tokens per second", rateText),
    hit_rate: new Chart(byId("charts"), "Hit rate", percentText, { top: 1 }),
    read_bytes_per_s: new Chart(byId("charts"), "Read from disk", (rate) => `${bytesText(rate)}/s`),
    stall_share: new Chart(byId("charts"), "Waiting for the disk", percentText, { top: 1 }),
  };
  #model = null;
  #memory = "";
  #requests = "";
  #mine;
  #onRequests;

  /** mine(): the names of the requests of this page. onRequests(requests): what all of them do now. */
  constructor({ mine, onRequests }) {
    this.#mine = mine;
    this.#onRequests = onRequests;
  }

  /** Follows the server until the page is closed; while it is hidden, nothing is asked for. */
  async follow() {
    let wait_ms = RETRY_MS.first;
    for (;;) {
      await inSight();
      const gone = new AbortController();
      const hide = () => document.hidden && gone.abort();
      document.addEventListener("visibilitychange", hide);
      try {
        for await (const event of live(gone.signal)) {
          wait_ms = RETRY_MS.first;
          this.#show(event);
        }
      } catch {
        // shown as "Not connected", and tried again
      }
      document.removeEventListener("visibilitychange", hide);
      if (gone.signal.aborted) continue;
      this.#showState("offline", requestText({ state: "offline" }));
      await new Promise((resolve) => setTimeout(resolve, wait_ms));
      wait_ms = Math.min(2 * wait_ms, RETRY_MS.most);
    }
  }

  #show(event) {
    if (event.model !== this.#model) {
      this.#model = event.model;
      Object.values(this.#charts).forEach((chart) => chart.clear());
    }
    this.#showRequests(event.requests);
    this.#onRequests(event.requests);
    this.#heat.update(event);
    for (const [name, chart] of Object.entries(this.#charts)) chart.push(event.layers ? event[name] : null);
    if (JSON.stringify(event.memory) !== this.#memory) {
      this.#memory = JSON.stringify(event.memory);
      showMemory(event.memory);
    }
  }

  /** The first request as the state of the machine, and where there are several all of them, with the page's marked. */
  #showRequests(requests) {
    const waiting = requests.filter(({ state }) => state === "queued").length;
    const first = requests[0] ?? IDLE;
    const words = requestText(first);
    const mine = this.#mine();
    const place = requests.find(({ name, state }) => mine.has(name) && state === "queued")?.position;
    const told = [words];
    if (waiting && first.state !== "queued") told.push(`${countText(waiting)} waiting`);
    if (place && requests.length > 1) told.push(`yours at place ${countText(place)}`);
    this.#showState(first.state, told.join(" · "));
    const { progress } = first;
    byId("progress").hidden = !progress;
    if (progress) [byId("progress").value, byId("progress").max] = [progress[0], Math.max(1, progress[1])];
    const state = JSON.stringify([requests, [...mine]]);
    if (state === this.#requests) return;
    this.#requests = state;
    byId("requests").hidden = requests.length < 2;
    byId("requests").replaceChildren(
      ...requests.map((each) => {
        const more = [each.model !== first.model && each.model, each.background && "background"].filter(Boolean);
        const yours = mine.has(each.name) && element("strong", {}, "Yours: ");
        return element("li", {}, yours || "", [requestText(each), ...more].join(" · "));
      }),
    );
  }

  #showState(state, words) {
    byId("state").dataset.state = state;
    if (byId("state-text").textContent !== words) byId("state-text").textContent = words;
  }
}

function showMemory(memory) {
  const parts = memory.filter((part) => part.bytes > 0);
  const total = parts.reduce((sum, part) => sum + part.bytes, 0);
  byId("memory-figure").textContent = total ? `${bytesText(total)} set aside for this model` : "No model is loaded";
  let start = 0;
  const bars = parts.map(({ bytes }, at) => {
    const width = (100 * bytes) / total;
    start += width;
    return svg("rect", { class: `part-${at}`, x: start - width, width, height: 1 });
  });
  byId("memory-bar").replaceChildren(...bars);
  byId("memory-parts").replaceChildren(...parts.map(memoryRow));
}

function memoryRow({ part, bytes }, at) {
  const swatch = element("span", { class: `swatch part-${at}` });
  return element("li", {}, swatch, element("span", {}, part), element("span", { class: "value" }, bytesText(bytes)));
}

async function inSight() {
  const changed = () => new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
  while (document.hidden) await changed();
}
