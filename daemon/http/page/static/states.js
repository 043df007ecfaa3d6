// The figures at a glance, the spool and the stores.

import { arrange, byId, chip, make, setAttribute, setText } from "./elements.js";
import { age, bytes, count, rate } from "./words.js";

export function showFigures(figures) {
  for (const [name, { text, note, tone }] of Object.entries(figures)) {
    const figure = byId(`figure-${name}`);
    setText(figure.querySelector("[data-value]"), text);
    setText(figure.querySelector("[data-note]"), note);
    figure.dataset.tone = tone ?? "";
  }
}

/** What stands at the top, from what the page knows. */
export function figuresOf({ waiting, warm, cold, other, running, rates, oldestMs, dead }) {
  const parts = [`${count(warm)} warm`, `${count(cold)} cold`];
  if (other) parts.push(`${count(other)} in the spool`);
  return {
    waiting: { text: count(waiting), note: parts.join(" · ") },
    running: { text: count(running), note: "in hand" },
    in: { text: rates ? rate(rates.in) : "–", note: "accepted, last minute" },
    out: { text: rates ? rate(rates.out) : "–", note: "delivered, last minute" },
    oldest: { text: age(oldestMs), note: oldestMs === null ? "nothing is waiting" : "waiting the longest" },
    dead: { text: count(dead), note: dead ? "need a look" : "none", tone: dead ? "bad" : "" },
  };
}

export function showSpool(spool) {
  const share = spool.maxBytes ? Math.min(1, spool.usedBytes / spool.maxBytes) : 0;
  const tone = share > 0.9 ? "bad" : share > 0.7 ? "warn" : "";
  setText(byId("spool-share"), `${share > 0 && share < 0.01 ? "under 1" : Math.floor(share * 100)} %`);
  setText(byId("spool-fill"), `${bytes(spool.usedBytes)} of ${bytes(spool.maxBytes)}`);
  setAttribute(byId("spool-bar"), "width", (share * 100).toFixed(2));
  setAttribute(byId("spool-meter"), "aria-valuenow", Math.round(share * 100));
  byId("spool").dataset.tone = tone;
  setText(byId("spool-estimate"), estimateWords(spool));
  const more = [`${count(spool.runs)} ${spool.runs === 1 ? "run" : "runs"}`];
  if (spool.freeBytes !== null) more.push(`${bytes(spool.freeBytes)} free on the disk`);
  if (spool.quarantineBytes) more.push(`${bytes(spool.quarantineBytes)} in quarantine`);
  setText(byId("spool-more"), more.join(" · "));
}

export function estimateWords({ estimate, usedBytes }) {
  if (!usedBytes) return "empty";
  if (!estimate || estimate.kind === "steady") return "neither filling nor draining";
  const when = estimate.seconds < 1 ? "a moment" : `about ${age(estimate.seconds * 1000)}`;
  return estimate.kind === "full" ? `full in ${when}` : `empty in ${when}`;
}

/** `entries`: {name, word, tone, note}. */
export function showStates(listId, entries, emptyText) {
  const list = byId(listId);
  const lines = entries.map((entry) => make("li", {},
    make("span", { class: "name", title: entry.name }, entry.name),
    make("span", { class: "muted note", title: entry.note }, entry.note ?? ""),
    chip(entry.word, entry.tone)));
  const said = JSON.stringify(entries);
  if (list.dataset.said === said) return;
  list.dataset.said = said;
  arrange(list, lines.length ? lines : [make("li", { class: "muted" }, emptyText)]);
}
