// One number over the last two minutes.

import { element, svg } from "../shared.js";

export const SAMPLES = 240;
const WIDTH = SAMPLES - 1;
const HEIGHT = 44;

export class Chart {
  #samples = [];
  #name;
  #text;
  #top;
  #period_s;
  #pointed = null; // samples before now
  #value = element("span", { class: "value" });
  #when = element("span", { class: "when" });
  #area = svg("path", { class: "area" });
  #line = svg("path", { class: "line" });
  #cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" });
  #picture = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });

  /** text(number): how a value reads. top: the upper end of the scale; without it, the largest value shown. */
  constructor(parent, name, text, { top = null, period_s = 0.5 } = {}) {
    [this.#name, this.#text, this.#top, this.#period_s] = [name, text, top, period_s];
    const caption = element("figcaption", {}, element("span", { class: "name" }, name), this.#when, this.#value);
    this.#picture.append(this.#area, this.#line, this.#cursor);
    this.#picture.addEventListener("pointermove", (event) => this.#point(event));
    this.#picture.addEventListener("pointerleave", () => this.#point(null));
    parent.append(element("figure", { class: "chart" }, caption, this.#picture));
    this.#show();
  }

  /** value: null where there is nothing to tell. */
  push(value) {
    this.#samples.push(value);
    if (this.#samples.length > SAMPLES) this.#samples.shift();
    this.#show();
  }

  clear() {
    this.#samples = [];
    this.#show();
  }

  #show() {
    const known = this.#samples.filter((value) => value !== null);
    const top = this.#top ?? Math.max(...known, 1e-9) * 1.1;
    const first = SAMPLES - this.#samples.length;
    const points = this.#samples.map(
      (value, at) => value !== null && [first + at, HEIGHT - 1 - (value / top) * (HEIGHT - 3)],
    );
    const runs = runsOf(points);
    this.#line.setAttribute("d", runs.map(lineOf).join(""));
    this.#area.setAttribute("d", runs.map((run) => `${lineOf(run)}V${HEIGHT}H${run[0][0]}Z`).join(""));
    this.#picture.setAttribute("aria-label", this.#words(known));
    this.#showValue(first);
  }

  #showValue(first) {
    const back = this.#pointed ?? 0;
    const value = this.#samples.at(-1 - back) ?? null;
    this.#value.textContent = value === null ? "–" : this.#text(value);
    this.#when.textContent = this.#pointed === null ? "" : `${Math.round(back * this.#period_s)} s ago`;
    const shown = this.#pointed !== null && SAMPLES - 1 - back >= first;
    this.#cursor.setAttribute("visibility", shown ? "visible" : "hidden");
    this.#cursor.setAttribute("x1", SAMPLES - 1 - back);
    this.#cursor.setAttribute("x2", SAMPLES - 1 - back);
  }

  #words(known) {
    if (!known.length) return `${this.#name}: nothing so far`;
    const [least, most] = [Math.min(...known), Math.max(...known)].map(this.#text);
    return `${this.#name}: last ${this.#text(known.at(-1))}, between ${least} and ${most}`;
  }

  #point(event) {
    if (event) {
      const { left, width } = this.#picture.getBoundingClientRect();
      const at = Math.round(((event.clientX - left) / width) * WIDTH);
      this.#pointed = Math.max(0, Math.min(this.#samples.length - 1, WIDTH - at));
    } else {
      this.#pointed = null;
    }
    this.#showValue(SAMPLES - this.#samples.length);
  }
}

/** Cuts where a point is missing. */
function runsOf(points) {
  const runs = [];
  points.forEach((point, at) => {
    if (!point) return;
    if (points[at - 1]) runs.at(-1).push(point);
    else runs.push([point]);
  });
  return runs;
}

function lineOf(run) {
  const path = run.map(([x, y]) => `${x} ${y.toFixed(1)}`).join("L");
  return run.length > 1 ? `M${path}` : `M${path}h0.5`;
}
