// Layers x experts, as they lie in memory and are used.

import { byId, countText, element, percentText } from "../shared.js";

const FADE = 0.5; // how much of the glow of a used expert is left after an event
const FAINTEST = 0.1; // a glow below is none
const still = matchMedia("(prefers-reduced-motion: reduce)"); // then nothing fades
// Of a row's height. From `gap` on, cells stand apart; from `inset` on, a used one shows what it was before.
const CELL_PX = { least: 3, most: 14, gap: 4, inset: 8 };
const TABLE_PERIOD_MS = 2000; // a table that changes faster cannot be read

export class HeatMap {
  #canvas = byId("heat");
  #layers = 0;
  #experts = 0;
  #missing = []; // where a layer has fewer experts than the largest
  #bits = { resident: [], used: [], reading: [] };
  #glow = new Float32Array(0);
  #tableAt = 0;
  #pointed = null;

  constructor() {
    new ResizeObserver(() => this.#draw()).observe(this.#canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.#canvas.addEventListener("pointerleave", () => this.#point(null));
    byId("layers").addEventListener("toggle", () => this.#showTable(true));
  }

  /** event: of /api/live. */
  update(event) {
    const { layers, experts } = event;
    if (layers !== this.#layers || experts !== this.#experts) {
      [this.#layers, this.#experts] = [layers, experts];
      this.#glow = new Float32Array(layers * experts);
    }
    this.#missing = bitsOf(event.missing, layers * experts);
    for (const name of Object.keys(this.#bits)) this.#bits[name] = bitsOf(event[name], layers * experts);
    const faded = (glow) => (glow < FAINTEST || still.matches ? 0 : glow * FADE);
    this.#glow.forEach((glow, at) => (this.#glow[at] = this.#bits.used[at] ? 1 : faded(glow)));
    this.#draw();
    this.#describe();
    this.#showTable(false);
    this.#showSpot();
  }

  #draw() {
    const { width } = this.#canvas.parentElement.getBoundingClientRect();
    this.#canvas.hidden = !this.#layers;
    if (!this.#layers || !width) return;
    const ratio = devicePixelRatio || 1;
    const height = Math.max(CELL_PX.least, Math.min(CELL_PX.most, Math.floor(width / this.#experts)));
    const [wide, high] = [Math.round(width * ratio), Math.round(this.#layers * height * ratio)];
    if (this.#canvas.width !== wide || this.#canvas.height !== high) {
      [this.#canvas.width, this.#canvas.height] = [wide, high];
      this.#canvas.style.height = `${this.#layers * height}px`;
    }
    const cell = [wide / this.#experts, high / this.#layers];
    this.#paint(this.#canvas.getContext("2d"), cell, Math.min(...cell) >= CELL_PX.gap * ratio ? Math.round(ratio) : 0);
  }

  #paint(context, [wide, high], gap) {
    const colours = Object.fromEntries(["absent", "resident", "used", "reading"].map((name) => [name, colourOf(name)]));
    const { resident, reading } = this.#bits;
    const fill = (at, colour, alpha, inset = 0) => {
      const [row, column] = [Math.floor(at / this.#experts), at % this.#experts];
      const [x, width] = span(column, wide, gap);
      const [y, height] = span(row, high, gap);
      context.fillStyle = colour;
      context.globalAlpha = alpha;
      context.fillRect(x + inset, y + inset, width - 2 * inset, height - 2 * inset);
    };
    const inset = gap && Math.min(wide, high) >= CELL_PX.inset * gap ? 2 * gap : 0; // shows what lies under the glow
    context.clearRect(0, 0, context.canvas.width, context.canvas.height);
    for (let at = 0; at < resident.length; at += 1) {
      if (this.#missing[at]) continue;
      fill(at, resident[at] ? colours.resident : colours.absent, 1);
      if (this.#glow[at]) fill(at, colours.used, this.#glow[at], inset);
      if (reading[at]) fill(at, colours.reading, 1);
    }
  }

  #describe() {
    const [resident, used, reading] = Object.values(this.#bits).map(count);
    const fewer = count(this.#missing);
    const total = this.#layers * this.#experts - fewer;
    byId("heat-axis").hidden = !total;
    if (!total) {
      byId("experts-figure").textContent = "No model is loaded";
      this.#canvas.setAttribute("aria-label", "Heat map of layers and experts: no model is loaded");
      return;
    }
    const figure = `${countText(resident)} of ${countText(total)} in memory (${percentText(resident / total)})`;
    byId("experts-figure").textContent = figure;
    const size = `${this.#layers} layers with ${fewer ? "at most " : ""}${this.#experts} experts each`;
    const words = `Heat map of ${size}: ${figure}, ${used} just used, ${reading} being read`;
    this.#canvas.setAttribute("aria-label", words);
  }

  #showTable(now) {
    if (!byId("layers").open || (!now && performance.now() - this.#tableAt < TABLE_PERIOD_MS)) return;
    this.#tableAt = performance.now();
    const rows = Array.from({ length: this.#layers }, (_, layer) => {
      const counts = Object.values(this.#bits).map((bits) => count(this.#ofLayer(bits, layer)));
      return element(
        "tr",
        {},
        element("th", { scope: "row" }, layer),
        ...counts.map((each) => element("td", {}, each)),
      );
    });
    byId("layer-rows").replaceChildren(...rows);
  }

  #ofLayer(bits, layer) {
    return bits.slice(layer * this.#experts, (layer + 1) * this.#experts);
  }

  #point(event) {
    const { left, top, width, height } = this.#canvas.getBoundingClientRect();
    const within = (share, cells) => Math.max(0, Math.min(cells - 1, Math.floor(share * cells)));
    this.#pointed = event && [
      within((event.clientY - top) / height, this.#layers),
      within((event.clientX - left) / width, this.#experts),
    ];
    this.#showSpot();
  }

  #showSpot() {
    const [layer, expert] = this.#pointed ?? [];
    const at = layer * this.#experts + expert;
    const { resident, reading } = this.#bits;
    const there = resident[at] ? "in memory" : reading[at] ? "being read" : "on disk";
    const state = this.#missing[at] ? "none" : there;
    byId("heat-spot").textContent = this.#pointed ? `layer ${layer}, expert ${expert}: ${state}` : "";
  }
}

/** Where the cell of this number begins, and how long it is, in whole pixels. */
function span(number, length, gap) {
  const start = Math.round(number * length);
  return [start, Math.max(1, Math.round((number + 1) * length) - start - gap)];
}

/** The legend holds the colours, so that style sheets alone decide on them. */
function colourOf(name) {
  return getComputedStyle(document.querySelector(`#legend .${name}`)).backgroundColor;
}

/** Base64 of bits, the lowest of a byte first, as an array of 0 and 1. */
function bitsOf(base64, length) {
  const bytes = atob(base64 ?? "");
  return Uint8Array.from({ length }, (_, at) => (bytes.charCodeAt(at >> 3) >> (at & 7)) & 1);
}

function count(bits) {
  return bits.reduce((sum, bit) => sum + bit, 0);
}
