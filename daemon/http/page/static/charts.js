// Small charts of the last hour, as SVG paths. What decides the shape is pure.

import { makeSvg, setAttribute } from "./elements.js";

export const WIDTH = 240;
export const HEIGHT = 40;
const PADDING = 2;

/** The next of 1, 2, 5, 10, 20 …: a top that does not change with every sample. */
export function niceTop(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

/**
 * "M0 40L4 38…" of values at times. Where nothing was sampled for `gapMs` the line is broken: the
 * daemon was away, and a line would say that it wasn't.
 */
export function line(times, values, from, to, top, gapMs) {
  let path = "", previous = -Infinity;
  times.forEach((at, index) => {
    if (at < from || at > to || values[index] === null) return;
    const x = ((at - from) / (to - from)) * WIDTH;
    const y = HEIGHT - PADDING - (values[index] / top) * (HEIGHT - 2 * PADDING);
    path += `${at - previous > gapMs ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    previous = at;
  });
  return path;
}

/** The same, filled down to the bottom; each unbroken part by itself. */
export function area(path) {
  return path.split("M").filter(Boolean).map((part) => {
    const points = part.split("L");
    const x = (point) => point.split(" ")[0];
    return `M${x(points[0])} ${HEIGHT}L${part}L${x(points.at(-1))} ${HEIGHT}Z`;
  }).join("");
}

export class Chart {
  /** `kinds`: the class of each of its paths, from the back to the front. */
  constructor(kinds) {
    this.paths = kinds.map((kind) => makeSvg("path", { class: kind, "vector-effect": "non-scaling-stroke" }));
    this.cursor = makeSvg("path", { class: "cursor", "vector-effect": "non-scaling-stroke" });
    this.element = makeSvg("svg", { class: "chart", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none" }, ...this.paths, this.cursor);
  }

  show(paths, label) {
    paths.forEach((path, index) => setAttribute(this.paths[index], "d", path));
    setAttribute(this.element, "aria-label", label);
  }

  /** Calls back with the share of the width that is pointed at, or null. */
  onpoint(callback) {
    this.element.addEventListener("pointermove", (event) => {
      const box = this.element.getBoundingClientRect();
      const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      this.cursor.setAttribute("d", `M${share * WIDTH} 0V${HEIGHT}`);
      callback(share);
    });
    this.element.addEventListener("pointerleave", () => {
      this.cursor.removeAttribute("d");
      callback(null);
    });
  }
}
