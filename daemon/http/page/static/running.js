// The Running Tasks panel: batches that workers and consumers have leased, the longest first.

import { arrange, byId, make, setAttribute, setText } from "./elements.js";
import { count, dateAndTime, duration, time } from "./words.js";

export const LONG_MS = 5 * 60 * 1000;
const SHOWN_MAX = 200;

export class RunningPanel {
  constructor() {
    this.panel = byId("running");
    this.body = byId("running-table").tBodies[0];
    this.tasks = [];
    this.askedMs = 0;
    this.drawn = new Map();
    this.panel.addEventListener("toggle", () => this.draw());
  }

  /** Durations go on from what the daemon said, so that clocks need not agree. */
  show(tasks) {
    this.askedMs = Date.now();
    this.tasks = tasks.sort((a, b) => b.runningMs - a.runningMs);
    this.draw();
  }

  tick() {
    this.draw();
  }

  draw() {
    const gone = Date.now() - this.askedMs;
    const long = this.tasks.filter((task) => task.runningMs + gone > LONG_MS).length;
    setText(byId("running-count"), count(this.tasks.length));
    setText(byId("running-long"), long ? `${count(long)} over 5 min` : "");
    byId("running-long").hidden = !long;
    if (!this.panel.open) return;
    const before = this.drawn;
    this.drawn = new Map();
    for (const task of this.tasks.slice(0, SHOWN_MAX)) {
      const row = before.get(task.key) ?? newRow(task);
      fillRow(row, task, task.runningMs + gone);
      this.drawn.set(task.key, row);
    }
    arrange(this.body, [...this.drawn.values()]);
    byId("running-empty").hidden = this.tasks.length > 0;
    byId("running-table").hidden = !this.tasks.length;
    setText(byId("running-more"), this.tasks.length > SHOWN_MAX
      ? `The ${SHOWN_MAX} longest of ${count(this.tasks.length)} are shown.` : "");
  }
}

function newRow(task) {
  const link = make("a", { href: itemAddress(task.id), class: "id" }, task.id);
  const cell = (name, label, ...children) =>
    make("td", { role: "cell", "data-column": name, "data-label": label }, ...children);
  return make("tr", { role: "row" },
    cell("item", "Item", link),
    cell("action", "Action", task.action, " ", make("span", { class: "muted" }, task.class)),
    cell("items", "Items"),
    cell("started", "Started", make("time", { title: dateAndTime(task.startedMs) }, time(task.startedMs))),
    cell("duration", "Duration"),
    cell("worker", "Worker", task.worker));
}

function fillRow(row, task, ms) {
  const isLong = ms > LONG_MS;
  row.classList.toggle("long", isLong);
  setText(row.cells[2], count(task.items));
  setText(row.cells[4], duration(ms));
  setAttribute(row.cells[4], "title", isLong ? "over 5 minutes" : null);
}

export const itemAddress = (id) => `/queue-metrics/items/${encodeURIComponent(id)}`;
