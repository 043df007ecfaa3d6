// What both tabs of the item view are made of.

import { chip, make } from "./elements.js";
import { count, dateAndTime } from "./words.js";

export const WAITING = new Set(["SPOOLED", "SCHEDULED", "QUEUED", "COLD_QUEUED"]);
const STATES = { DONE: "good", FAILED: "bad", DELETED: "plain", RUNNING: "warn" };
const ID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-\\d{1,4}";
const ITEM_ID = new RegExp(`^${ID}$`, "i"), ITEM_IDS = new RegExp(`\\b(${ID})\\b`, "i");

export const stateChip = (state) => chip(state, STATES[state]);

/** Those that there is something to say of. */
export function pairs(entries) {
  const said = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return said.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
}

/** A job is an item of its own, or has an id that somebody else gave it. */
export function itemLink(id, text = id) {
  return isItem(id) ? make("a", { href: `/queue-metrics/items/${encodeURIComponent(id)}` }, text) : text;
}

/** A text whose item ids lead to their items. */
export function linked(text) {
  return text.split(ITEM_IDS).map((part) => (isItem(part) ? itemLink(part) : part));
}

export const isItem = (id) => typeof id === "string" && ITEM_ID.test(id);

/** What failed: the work itself (business), or what should have done it (application). */
export const reasonChip = (reason) => chip(reason, reason === "business" ? "warn" : "plain");

export function errorLine(error) {
  const reason = error.failure_reason ? [reasonChip(error.failure_reason), " "] : [];
  return make("li", {},
    make("time", {}, dateAndTime(error.at_ms), make("span", { class: "after" }, ` attempt ${count(error.attempt)}`)),
    make("p", {}, ...reason, error.text || "(without a word)",
      error.locked_by ? make("span", { class: "muted after" }, `by ${error.locked_by}`) : null));
}

/** JSON with its lines; everything else as it is. */
export function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
