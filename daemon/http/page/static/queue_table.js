// The Action Queues table: the part of it that can be seen, however many rows there are.
//
// A refresh changes the text of the cells that differ. While somebody points at the table or has the
// focus in it, rows keep their places, so that none moves away from under a hand.

import { COLUMNS, filtered, firstDirection, grouped, inOrderOf, sorted } from "./rows.js";
import { arrange, byId, chip, make, setAttribute, setText } from "./elements.js";
import { age, count } from "./words.js";
import { bindRowKeys } from "./row_keys.js";
import { hideTip, isTip, showTip } from "./tip.js";
import { visible } from "./window.js";

const LABELS = { flow: "Flow", type: "Type", action: "Action", class: "Action Class",
  warm: "Warm", cold: "Cold", total: "Total", oldest: "Oldest" };

export class QueueTable {
  constructor() {
    this.box = byId("queue-box");
    this.table = byId("queue-table");
    this.body = this.table.tBodies[0];
    this.rows = [];
    this.entries = [];
    this.drawn = new Map();
    this.column = "total";
    this.direction = "descending";
    this.text = "";
    this.isGrouped = false;
    this.openClasses = new Set();
    this.rowHeight = 0;
    this.nowMs = 0;
    this.above = make("tr", { class: "spacer", "aria-hidden": "true" }, make("td", { colspan: "8" }));
    this.below = this.above.cloneNode(true);
    this.bind();
  }

  bind() {
    for (const button of this.table.tHead.querySelectorAll("button")) {
      button.disabled = false;
      button.addEventListener("click", () => this.sortBy(button.dataset.column));
    }
    byId("filter").addEventListener("input", (event) => this.filterBy(event.target.value));
    byId("group").addEventListener("click", () => this.toggleGroups());
    byId("queue-tools").hidden = false;
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.resized()).observe(this.box);
    this.body.addEventListener("mouseover", (event) => this.point(event.target));
    this.body.addEventListener("mouseout", (event) => {
      if (!isTip(event.relatedTarget)) hideTip();
    });
    this.body.addEventListener("focusin", (event) => this.describe(event.target.closest("tr")));
    this.body.addEventListener("focusout", hideTip);
    this.body.addEventListener("click", (event) => this.open(event.target.closest("tr")));
    this.keys = bindRowKeys(this);
  }

  /** New values; `nowMs` is the daemon's time, since ages are by its clock. */
  show(rows, nowMs) {
    this.rows = rows;
    this.nowMs = nowMs;
    this.refresh(this.isHeld());
  }

  isHeld() {
    return this.body.matches(":hover") || this.body.contains(document.activeElement);
  }

  sortBy(column) {
    const reverse = { ascending: "descending", descending: "ascending" };
    this.direction = column === this.column ? reverse[this.direction] : firstDirection(column);
    this.column = column;
    this.refresh();
  }

  filterBy(text) {
    this.text = text;
    this.box.scrollTop = 0;
    this.refresh();
    this.onfilter?.(text);
  }

  toggleGroups() {
    this.isGrouped = !this.isGrouped;
    byId("group").setAttribute("aria-pressed", this.isGrouped);
    this.box.scrollTop = 0;
    this.refresh();
  }

  refresh(keepOrder = false) {
    const chosen = filtered(this.rows, this.text);
    const entries = this.isGrouped
      ? grouped(chosen, this.column, this.direction, this.openClasses)
      : sorted(chosen, this.column, this.direction);
    this.entries = keepOrder ? inOrderOf(entries, this.entries.map((entry) => entry.key)) : entries;
    this.showHead(chosen.length);
    this.draw();
  }

  showHead(chosen) {
    for (const head of this.table.tHead.querySelectorAll("th")) {
      const isSorted = head.firstElementChild.dataset.column === this.column;
      setAttribute(head, "aria-sort", isSorted ? this.direction : null);
    }
    this.table.setAttribute("aria-rowcount", this.entries.length + 1);
    const all = this.rows.length;
    setText(byId("queue-count"), chosen === all ? count(all) : `${count(chosen)} of ${count(all)}`);
    const empty = byId("queue-empty");
    empty.hidden = this.entries.length > 0;
    setText(empty, all ? `No row has “${this.text}”.` : "Nothing is waiting.");
    this.box.hidden = !this.entries.length;
  }

  draw() {
    const { first, last, above, below } = visible(
      this.entries.length, this.rowHeight, this.box.scrollTop, this.box.clientHeight);
    const before = this.drawn, rows = [];
    this.drawn = new Map();
    for (let index = first; index < last; index += 1) {
      const entry = this.entries[index];
      const row = before.get(entry.key) ?? this.newRow(entry);
      this.drawn.set(entry.key, row);
      this.fillRow(row, entry, index);
      rows.push(row);
    }
    this.above.style.height = `${above}px`;
    this.below.style.height = `${below}px`;
    arrange(this.body, [...(above ? [this.above] : []), ...rows, ...(below ? [this.below] : [])]);
    this.keys.settle();
    this.measure(rows[0]);
  }

  /** All rows have one height, which the style knows: read from the first that is drawn. */
  measure(row) {
    if (this.rowHeight || !row) return;
    this.rowHeight = row.getBoundingClientRect().height;
    if (this.rowHeight && this.entries.length > this.drawn.size) this.draw();
  }

  resized() {
    this.rowHeight = 0;
    this.draw();
  }

  newRow(entry) {
    const row = make("tr", { role: "row", tabindex: "-1", class: entry.isGroup ? "group" : null });
    for (const column of COLUMNS) {
      row.append(make("td", { role: "cell", "data-column": column, "data-label": LABELS[column] }));
    }
    return row;
  }

  fillRow(row, entry, index) {
    row.dataset.key = entry.key;
    setAttribute(row, "aria-rowindex", index + 2);
    const [flow, type, action, kind, warm, cold, total, oldest] = row.cells;
    if (entry.isGroup) {
      const isOpen = this.openClasses.has(entry.class);
      setAttribute(row, "aria-expanded", String(isOpen));
      setText(flow, entry.members.length === 1 ? "1 row" : `${count(entry.members.length)} rows`);
    } else {
      setText(flow, entry.flow || "–");
      setText(type, entry.type);
      showAction(action, entry);
    }
    setText(kind, entry.class);
    setNumber(warm, entry.warm);
    setNumber(cold, entry.cold);
    setNumber(total, entry.total);
    setText(oldest, age(entry.oldest === null ? null : this.nowMs - entry.oldest));
  }

  point(target) {
    const cell = target.closest("td[data-column='class']");
    const row = cell?.closest("tr");
    const entry = row && this.entryOf(row);
    if (entry?.plugin) showTip(cell, entry.plugin, row);
  }

  describe(row) {
    const entry = row && this.entryOf(row);
    if (entry?.plugin) showTip(row.cells[3], entry.plugin, row);
  }

  /** Opens or closes a group. */
  open(row) {
    const entry = row && this.entryOf(row);
    if (!entry?.isGroup) return;
    if (!this.openClasses.delete(entry.class)) this.openClasses.add(entry.class);
    this.refresh();
  }

  entryOf(row) {
    return this.entries.find((entry) => entry.key === row.dataset.key);
  }
}

function setNumber(cell, number) {
  setText(cell, count(number));
  cell.classList.toggle("none", number === 0);
}

/** The action and its queue, since two queues may have one action; an action may have no name. */
function showAction(cell, entry) {
  const said = JSON.stringify([entry.action, entry.queue, entry.note]);
  if (cell.dataset.said === said) return;
  cell.dataset.said = said;
  cell.replaceChildren(entry.action || entry.queue,
    ...(entry.action ? [" ", make("span", { class: "muted" }, entry.queue)] : []),
    ...(entry.note ? [" ", chip(entry.note, entry.tone)] : []));
}
