// The queues and their last hour: what came in, what went out, what waits; pause and resume.

import { change } from "./api.js";
import { Chart, area, line, niceTop } from "./charts.js";
import { acting, say } from "./dialogs.js";
import { arrange, byId, chip, make, setText } from "./elements.js";
import { age, count, items, rate, time } from "./words.js";

const AT_FIRST = 12;
const STEP = 48;
const HOUR_MS = 3_600_000;
const LEAST_MS = 120_000;

/** From when charts show: an hour back, or from the first sample of a daemon that is younger. */
export function beginning(queues, nowMs) {
  const first = Math.min(...queues.map((queue) => queue.history.times[0] ?? nowMs), nowMs);
  return Math.min(nowMs - LEAST_MS, Math.max(nowMs - HOUR_MS, first));
}

export class QueueList {
  /** `onchange`: something was changed; `onneed`: queues are in sight whose hour is not known. */
  constructor(onchange, onneed) {
    this.onchange = onchange;
    this.onneed = onneed;
    this.list = byId("queue-list");
    this.queues = [];
    this.drawn = new Map();
    this.shown = AT_FIRST;
    this.text = "";
    byId("queue-list-more").addEventListener("click", () => {
      this.shown += STEP;
      this.draw();
      this.onneed();
    });
  }

  show(queues, nowMs) {
    this.nowMs = nowMs;
    const isHeld = this.list.matches(":hover") || this.list.contains(document.activeElement);
    const order = new Map(this.queues.map((queue, index) => [queue.name, index]));
    const place = (queue) => (isHeld ? order.get(queue.name) ?? Infinity : 0);
    this.queues = queues.sort((a, b) => place(a) - place(b) || b.waiting - a.waiting || (a.name < b.name ? -1 : 1));
    this.fromMs = beginning(queues, nowMs);
    const span = nowMs - this.fromMs;
    setText(byId("hour-span"), span > HOUR_MS - 2 * LEAST_MS ? "last hour" : `last ${age(span)}`);
    this.draw();
  }

  /** Whose last hour is in sight. */
  namesShown() {
    return [...this.drawn.keys()];
  }

  filterBy(text) {
    this.text = text.toLowerCase();
    this.draw();
    if ([...this.drawn.values()].some((entry) => !entry.queue.history.times.length)) this.onneed();
  }

  draw() {
    const words = this.text.split(/\s+/).filter(Boolean);
    const chosen = this.queues.filter((queue) => words.every((word) => queue.haystack.includes(word)));
    const before = this.drawn;
    this.drawn = new Map();
    for (const queue of chosen.slice(0, this.shown)) {
      const entry = before.get(queue.name) ?? new Entry(queue.name, this.onchange);
      entry.show(queue, this.fromMs, this.nowMs);
      this.drawn.set(queue.name, entry);
    }
    arrange(this.list, [...this.drawn.values()].map((entry) => entry.element));
    const left = chosen.length - this.drawn.size;
    byId("queue-list-more").hidden = left <= 0;
    setText(byId("queue-list-more"), `Show ${count(Math.min(STEP, left))} more of ${count(left)}`);
    byId("queue-list-empty").hidden = chosen.length > 0;
    setText(byId("queue-list-empty"), this.queues.length ? `No queue has “${this.text}”.`
      : "There is no queue yet: one exists once something is pushed to it.");
  }
}

class Entry {
  constructor(name, onchange) {
    this.name = name;
    this.state = make("span", { class: "states" });
    this.about = make("span", { class: "muted about" });
    this.flow = new Chart(["in", "out"]);
    this.flowValues = make("p", { class: "values" });
    this.backlog = new Chart(["backlog-area", "backlog"]);
    this.backlogValues = make("p", { class: "values" });
    this.button = make("button", { type: "button", class: "quiet",
      onclick: () => acting(this.button, () => this.toggle(onchange)) });
    this.element = make("li", { class: "queue", "data-queue": name },
      make("div", { class: "who" }, make("h3", { title: name }, name), this.state, this.about),
      make("div", { class: "plot" }, this.flow.element, this.flowValues),
      make("div", { class: "plot" }, this.backlog.element, this.backlogValues),
      this.button);
    this.flow.onpoint((share) => this.point(share));
    this.backlog.onpoint((share) => this.point(share));
  }

  show(queue, fromMs, nowMs) {
    this.queue = queue;
    this.fromMs = fromMs;
    this.nowMs = nowMs;
    const said = queue.states.map((state) => state.word).join();
    if (this.state.dataset.said !== said) {
      this.state.dataset.said = said;
      this.state.replaceChildren(...queue.states.map((state) => chip(state.word, state.tone)));
    }
    setText(this.about, queue.about);
    setText(this.button, queue.isPaused ? "Resume" : "Pause");
    this.button.setAttribute("aria-label", `${queue.isPaused ? "Resume" : "Pause"} ${queue.name}`);
    this.draw();
    this.point(null);
  }

  draw() {
    const { times, in: came, out: went, backlog, gapMs } = this.queue.history;
    const top = niceTop(Math.max(...came, ...went, 1)), most = niceTop(Math.max(...backlog, 1));
    const path = (values, max) => line(times, values, this.fromMs, this.nowMs, max, gapMs);
    this.flow.show([path(came, top), path(went, top)],
      `${this.name}: at most ${rate(Math.max(...came, 0))} in and ${rate(Math.max(...went, 0))} out`);
    const waited = path(backlog, most);
    this.backlog.show([area(waited), waited], `${this.name}: at most ${items(Math.max(...backlog, 0))} waiting`);
  }

  /** The values at a share of the width, or now. */
  point(share) {
    const { times, in: came, out: went, backlog } = this.queue.history;
    const at = share === null ? times.length - 1 : nearest(times, this.fromMs + (this.nowMs - this.fromMs) * share);
    const when = share === null || at < 0 ? null : make("span", { class: "muted" }, time(times[at]));
    const pair = (kind, word, text) => make("span", { class: kind }, make("b", {}, text), ` ${word}`);
    const waiting = share === null ? this.queue.waiting : backlog[at] ?? 0;
    put(this.flowValues, pair("key-in", "in", rate(came[at] ?? 0)), pair("key-out", "out", rate(went[at] ?? 0)), when);
    put(this.backlogValues, pair("key-backlog", "waiting", count(waiting)),
      this.queue.dead && share === null ? pair("key-dead", "dead", count(this.queue.dead)) : null, when?.cloneNode(true));
  }

  async toggle(onchange) {
    const { isPaused, name } = this.queue;
    await change("POST", `/api/v2/queues/${encodeURIComponent(name)}/${isPaused ? "resume" : "pause"}`);
    say(isPaused ? `${name} delivers again.` : `${name} is paused: it takes work and delivers nothing.`);
    await onchange();
  }
}

function put(parent, ...children) {
  const fresh = children.filter(Boolean);
  const said = fresh.map((child) => child.textContent).join("|");
  if (parent.dataset.said === said) return;
  parent.dataset.said = said;
  parent.replaceChildren(...fresh);
}

function nearest(times, at) {
  let best = -1;
  times.forEach((value, index) => {
    if (best < 0 || Math.abs(value - at) < Math.abs(times[best] - at)) best = index;
  });
  return best;
}
