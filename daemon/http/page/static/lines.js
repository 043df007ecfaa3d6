// A table of what operators look after, a line for each: filtered, sorted, and drawn as far as
// somebody has asked for, so that a thousand of them cost no more than the ones in sight.
//
// A line is an object with `key`, `haystack` (lower case) and the members that it is sorted by. What
// a line looks like is its entry's: an object with `element` (a row) and `show(line)`.

import { acting } from "./dialogs.js";
import { arrange, byId, make, setAttribute, setText } from "./elements.js";
import { filtered, inOrderOf } from "./rows.js";
import { count } from "./words.js";

const AT_FIRST = 40;
const STEP = 80;

export class Lines {
  /**
   * `name`: what the ids of its elements begin with. `newEntry` makes one for a key. `onneed`: there
   * are new lines in sight. `words`: what is said where there is none. `order`: by what they are
   * sorted at first.
   */
  constructor(name, { newEntry, onneed = () => {}, words, order = ["name", "ascending"] }) {
    this.name = name;
    this.newEntry = newEntry;
    this.words = words;
    this.lines = [];
    this.entries = [];
    this.drawn = new Map();
    this.shown = AT_FIRST;
    this.text = new URLSearchParams(location.search).get("filter") ?? "";
    [this.column, this.direction] = order;
    this.table = byId(`${name}-table`);
    this.body = this.table.tBodies[0];
    this.bind(onneed);
  }

  bind(onneed) {
    for (const button of this.table.tHead.querySelectorAll("button")) {
      button.addEventListener("click", () => this.sortBy(button.dataset.column));
    }
    byId(`${this.name}-filter`).value = this.text;
    byId(`${this.name}-filter`).addEventListener("input", (event) => {
      this.text = event.target.value;
      this.refresh();
      onneed();
    });
    byId(`${this.name}-more`).addEventListener("click", () => {
      this.shown += STEP;
      this.refresh();
      onneed();
    });
  }

  show(lines) {
    this.lines = lines;
    const isHeld = this.body.matches(":hover") || this.body.contains(document.activeElement);
    this.refresh(isHeld);
  }

  /** The lines in sight. */
  inSight() {
    return this.entries.slice(0, this.shown);
  }

  sortBy(column) {
    const reverse = { ascending: "descending", descending: "ascending" };
    this.direction = column === this.column ? reverse[this.direction] : "ascending";
    this.column = column;
    this.refresh();
  }

  /** `keepOrder`: somebody points at a line, which must not move away. */
  refresh(keepOrder = false) {
    const sorted = inOrder(filtered(this.lines, this.text), this.column, this.direction);
    this.entries = keepOrder ? inOrderOf(sorted, this.entries.map((line) => line.key)) : sorted;
    for (const head of this.table.tHead.querySelectorAll("th")) {
      setAttribute(head, "aria-sort", head.dataset.column === this.column ? this.direction : null);
    }
    this.draw();
    this.showCounts();
  }

  draw() {
    const before = this.drawn;
    this.drawn = new Map();
    for (const line of this.inSight()) {
      const entry = before.get(line.key) ?? this.newEntry(line.key);
      entry.show(line);
      this.drawn.set(line.key, entry);
    }
    arrange(this.body, [...this.drawn.values()].map((entry) => entry.element));
  }

  showCounts() {
    const all = this.lines.length, chosen = this.entries.length, left = chosen - this.drawn.size;
    setText(byId(`${this.name}-count`), chosen === all ? count(all) : `${count(chosen)} of ${count(all)}`);
    this.table.hidden = !chosen;
    byId(`${this.name}-more`).hidden = left <= 0;
    setText(byId(`${this.name}-more`), `Show ${count(Math.min(STEP, left))} more of ${count(left)}`);
    byId(`${this.name}-empty`).hidden = chosen > 0;
    setText(byId(`${this.name}-empty`), all ? `Nothing has “${this.text}”.` : this.words.empty);
  }

  /** Once a second: what entries say of the time that passes. */
  tick() {
    for (const entry of this.drawn.values()) entry.tick?.();
  }
}

/** By a member; what has none stands last, whichever way. */
export function inOrder(lines, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const isNone = (value) => value === null || value === undefined || value === "";
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return [...lines].sort((one, other) => {
    const a = one[column], b = other[column];
    if (isNone(a) || isNone(b)) return isNone(a) - isNone(b) || compare(one.key, other.key);
    return sign * compare(a, b) || compare(one.key, other.key);
  });
}

/** A cell of an entry; on a telephone, where a table has no head, it says its own name. */
export function cell(column, label, ...children) {
  return make("td", { role: "cell", "data-column": column, "data-label": label }, ...children);
}

/** A button that is out of use while what it does is done. */
export function button(text, act, kind = "quiet") {
  const made = make("button", { type: "button", class: kind, onclick: () => acting(made, act) }, text);
  return made;
}
