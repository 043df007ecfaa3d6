// Dead letters, grouped by their error: how many, of which queues, an example; retry and delete.

import { acting, confirmed, say } from "./dialogs.js";
import { arrange, byId, chip, make, setText } from "./elements.js";
import { remove, retry } from "./dead_jobs.js";
import { filtered } from "./rows.js";
import { itemAddress } from "./running.js";
import { age, count } from "./words.js";

const OTHERS = "(others)";

export class DeadLetters {
  constructor(onchange) {
    this.onchange = onchange;
    this.list = byId("dead-list");
    this.drawn = new Map();
    this.groups = [];
    this.text = "";
  }

  /** `isPartial`: there are more than the daemon looked through. */
  show(groups, nowMs, isPartial) {
    this.groups = groups;
    this.nowMs = nowMs;
    this.isPartial = isPartial;
    this.draw();
  }

  filterBy(text) {
    this.text = text;
    if (this.nowMs !== undefined) this.draw();
  }

  draw() {
    const { groups, nowMs, isPartial, text } = this;
    const chosen = filtered(groups, text), before = this.drawn;
    this.drawn = new Map();
    for (const group of chosen) {
      const entry = before.get(group.key) ?? new Group(this.onchange);
      entry.show(group, nowMs);
      this.drawn.set(group.key, entry);
    }
    arrange(this.list, [...this.drawn.values()].map((entry) => entry.element));
    byId("dead-empty").hidden = chosen.length > 0;
    setText(byId("dead-empty"), groups.length ? `None has “${text}”.` : "No dead letters.");
    byId("dead-partial").hidden = !isPartial;
    const all = total(groups) + (isPartial ? "+" : "");
    setText(byId("dead-count"), chosen.length === groups.length ? all : `${total(chosen)} of ${all}`);
  }
}

const total = (groups) => count(groups.reduce((sum, group) => sum + group.count, 0));

class Group {
  constructor(onchange) {
    this.count = make("span", { class: "number" });
    this.error = make("p", { class: "error" });
    this.queues = make("span", { class: "chips" });
    this.when = make("span", { class: "muted" });
    this.example = make("a", { class: "id" });
    this.progress = make("span", { class: "muted", role: "status" });
    this.retryButton = make("button", { type: "button", class: "quiet",
      onclick: () => acting(this.retryButton, () => this.retry(onchange)) }, "Retry");
    this.deleteButton = make("button", { type: "button", class: "quiet danger",
      onclick: () => acting(this.deleteButton, () => this.remove(onchange)) }, "Delete");
    this.element = make("li", { class: "dead" }, this.count,
      make("div", { class: "what" }, this.error,
        make("p", { class: "more" }, this.queues, this.when, this.example, this.progress)),
      make("div", { class: "actions" }, this.retryButton, this.deleteButton));
  }

  show(group, nowMs) {
    this.group = group;
    setText(this.count, count(group.count));
    setText(this.error, group.error || "(without a word)");
    this.error.title = group.error;
    if (this.queues.dataset.said !== group.queue) {
      this.queues.dataset.said = group.queue;
      this.queues.replaceChildren(chip(group.queue));
    }
    setText(this.when, group.lastMs === null ? "" : `last ${age(nowMs - group.lastMs)} ago`);
    setText(this.example, group.example ? "example" : "");
    this.example.hidden = !group.example;
    if (group.example) this.example.href = itemAddress(group.example);
    // Errors of too many kinds are one group, which nobody can choose by its error.
    this.retryButton.hidden = this.deleteButton.hidden = group.shape === OTHERS;
    const words = `${this.words()} of ${group.queue}`;
    this.retryButton.setAttribute("aria-label", `Retry ${words}: ${group.error}`);
    this.deleteButton.setAttribute("aria-label", `Delete ${words}: ${group.error}`);
  }

  words() {
    return this.group.count === 1 ? "1 dead letter" : `${count(this.group.count)} dead letters`;
  }

  async retry(onchange) {
    const { group } = this;
    const text = `Every dead letter of ${group.queue} with this error goes back to its queue and is `
      + `delivered again. What was sent cannot be called back. The error: ${group.error}`;
    if (!(await confirmed({ title: `Retry ${this.words()}?`, text, verb: "Retry" }))) return;
    const done = await this.followed(retry);
    say(`${count(done)} of ${group.queue} wait for delivery again.`, "good");
    await onchange();
  }

  async remove(onchange) {
    const { group } = this;
    const text = `Their payloads are gone then, and nothing brings them back. The error: ${group.error}`;
    const title = `Delete ${this.words()} of ${group.queue}?`;
    if (!(await confirmed({ title, text, verb: "Delete", isDangerous: true }))) return;
    const done = await this.followed(remove);
    say(`${count(done)} of ${group.queue} deleted.`);
    await onchange();
  }

  async followed(act) {
    try {
      return await act(this.group, (done, all) => setText(this.progress, `${count(done)} of ${count(all)} …`));
    } finally {
      setText(this.progress, "");
    }
  }
}
