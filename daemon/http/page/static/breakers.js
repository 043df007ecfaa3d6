// The breakers: what each destination's is, since when it fails, and an operator's word about it.

import { change } from "./api.js";
import { acting, confirmed, say } from "./dialogs.js";
import { arrange, byId, chip, make, setAttribute, setText } from "./elements.js";
import { count, time } from "./words.js";

const TONES = { closed: "good", open: "bad", half_open: "warn" };

export class BreakerList {
  constructor(onchange) {
    this.onchange = onchange;
    this.list = byId("breakers");
    this.empty = make("li", { class: "muted" }, "No queue delivers anywhere yet.");
    this.drawn = new Map();
  }

  show(breakers) {
    const before = this.drawn;
    this.drawn = new Map();
    for (const breaker of breakers) {
      const entry = before.get(breaker.destination) ?? new Entry(breaker.destination, this.onchange);
      entry.show(breaker);
      this.drawn.set(breaker.destination, entry);
    }
    arrange(this.list, breakers.length ? [...this.drawn.values()].map((entry) => entry.element) : [this.empty]);
  }
}

class Entry {
  constructor(destination, onchange) {
    this.destination = destination;
    this.note = make("span", { class: "muted note" });
    this.state = make("span");
    this.button = make("button", { type: "button", class: "quiet",
      onclick: () => acting(this.button, () => this.force(onchange)) });
    this.element = make("li", { "data-destination": destination },
      make("span", { class: "name", title: destination }, destination), this.note, this.state, this.button);
  }

  show(breaker) {
    this.isClosed = breaker.state === "closed";
    setText(this.note, noteOf(breaker));
    setAttribute(this.note, "title", breaker.lastError || null);
    const word = breaker.state.replace("_", "-");
    if (this.state.textContent !== word) this.state.replaceChildren(chip(word, TONES[breaker.state]));
    setText(this.button, this.isClosed ? "Open" : "Close");
    this.button.setAttribute("aria-label", `${this.isClosed ? "Open" : "Close"} the breaker of ${this.destination}`);
  }

  async force(onchange) {
    const state = this.isClosed ? "open" : "closed";
    const text = this.isClosed
      ? `Nothing is sent to ${this.destination} until an operator closes the breaker. Sends in flight are finished.`
      : `What waits for ${this.destination} is sent at once. If it still fails, the breaker opens by itself again.`;
    const title = this.isClosed ? "Open this breaker?" : "Close this breaker?";
    if (!(await confirmed({ title, text, verb: this.isClosed ? "Open" : "Close" }))) return;
    await change("PUT", `/api/v2/breakers?${new URLSearchParams({ destination: this.destination })}`, { state });
    say(state === "open" ? `Nothing is sent to ${this.destination}.` : `${this.destination} is tried again.`);
    await onchange();
  }
}

function noteOf(breaker) {
  if (breaker.isForced) return "opened by an operator";
  const failed = breaker.failures ? `${count(breaker.failures)} failed in a row` : "";
  const until = breaker.untilMs === null ? "" : `tried again at ${time(breaker.untilMs)}`;
  return [failed, until].filter(Boolean).join(", ");
}
