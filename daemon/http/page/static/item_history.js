// The history tab of the item view: what happened to the item and when, the attempts that failed,
// its result, in whose hands it is or was, and the items that have to do with it.

import { get, Refused } from "./api.js";
import { acting } from "./dialogs.js";
import { arrange, byId, make, setText } from "./elements.js";
import { errorLine, isItem, itemLink, pairs, pretty, reasonChip, stateChip } from "./item_parts.js";
import { count, dateAndTime, took } from "./words.js";

const EVENTS = { delivered: "good", dead: "bad", failed: "bad", running: "warn" };
const OVER = new Set(["DONE", "DELETED"]);
const NAMED_MAX = 10, RELATED_MAX = 20;
const SEARCHES_MAX = 5;
const MOMENT = /\b1\d{12}\b/g;

export class HistoryTab {
  constructor() {
    this.item = null;
    this.related = [];
    byId("related-find").addEventListener("click", (event) => acting(event.currentTarget, () => this.find()));
  }

  show(item) {
    this.item = item;
    const errors = item.errors ?? [], events = item.timeline ?? [];
    arrange(byId("timeline"), events.map(eventLine));
    byId("errors-panel").hidden = !errors.length;
    setText(byId("errors-count"), count(errors.length));
    arrange(byId("errors"), [...errors].reverse().map(errorLine));
    showResult(item.result);
    arrange(byId("item-hands"), pairs(hands(item)));
    this.showRelated();
  }

  /** The items that this one names: the job that has it, or what it has as a job. */
  async follow() {
    const named = namedBy(this.item).slice(0, NAMED_MAX);
    const known = new Map(this.related.map((each) => [each.id, each]));
    const open = named.filter(({ id }) => !isOver(known.get(id)));
    const found = await Promise.all(open.map(async ({ id, what }) => ({ id, what, ...(await stateOf(id)) })));
    for (const each of found) known.set(each.id, each);
    this.related = [...known.values()];
    this.showRelated(namedBy(this.item).length - named.length);
  }

  /** A search goes through everything that is stored: it is made when somebody wants it. */
  async find() {
    const note = byId("related-note");
    setText(note, "Searching …");
    try {
      const { found, isPartial } = await search(this.item);
      const known = new Set(this.related.map(({ id }) => id));
      this.related = [...this.related, ...found.filter(({ id }) => !known.has(id))];
      this.showRelated();
      setText(note, isPartial ? "There may be more: forebay items ls goes through all."
        : found.length ? "" : "Nothing else has its correlation id.");
    } catch (problem) {
      setText(note, "");
      throw problem;
    }
  }

  showRelated(left = 0) {
    byId("related-find").hidden = !this.item.correlation_id;
    byId("related-panel").hidden = !this.related.length && !this.item.correlation_id;
    arrange(byId("related"), this.related.map(relatedLine));
    if (left > 0) setText(byId("related-note"), `and ${count(left)} more`);
  }
}

function eventLine(event, index, all) {
  const before = all.slice(0, index).findLast((other) => other.at_ms !== null);
  const after = event.at_ms !== null && before ? event.at_ms - before.at_ms : null;
  const text = event.text.replace(MOMENT, (ms) => dateAndTime(Number(ms)));
  return make("li", { "data-tone": EVENTS[event.what] ?? null },
    make("time", {}, event.at_ms === null ? "now" : dateAndTime(event.at_ms),
      after === null || after < 0 ? null : make("span", { class: "after" }, `after ${took(after)}`)),
    make("p", {}, make("strong", {}, event.what.replace("_", " ")), text ? " " : null,
      text ? make("span", { class: "detail" }, text) : null));
}

function hands(item) {
  const at = (ms) => (ms === null || ms === undefined ? null : dateAndTime(ms));
  const job = item.job_id ?? item.job, due = item.scheduled_at_ms ?? item.due_ms;
  const locked = item.state === "RUNNING" ? "Locked" : "Last locked";
  return [
    ["State", stateChip(item.state)],
    ["Attempts", String(item.attempt)],
    ["Retries", item.retries ? String(item.retries) : null],
    ["Failure", item.failure_reason && reasonChip(item.failure_reason)],
    [`${locked} by`, item.locked_by],
    [`${locked} at`, at(item.locked_ms)],
    ["Job", job && itemLink(job)],
    ["Created", at(item.enqueued_ms)],
    ["First due", item.scheduled_at_initially_ms === due ? null : at(item.scheduled_at_initially_ms)],
    ["Due", at(due)],
    ["Updated", at(item.updated_ms)],
    ["Ended", at(item.ended_ms)],
  ];
}

function showResult(result) {
  const text = result === null || result === undefined ? "" : typeof result === "string" ? result : JSON.stringify(result);
  byId("result-panel").hidden = !text;
  setText(byId("result"), pretty(text));
}

/** What has the correlation id of an item, as far as a few requests come. */
async function search(item) {
  const which = { correlation_id: item.correlation_id, limit: RELATED_MAX };
  let cursor = null, found = [];
  for (let searches = 0; searches < SEARCHES_MAX && found.length < RELATED_MAX; searches += 1) {
    const page = await get(`/api/queue-items?${new URLSearchParams(cursor ? { ...which, cursor } : which)}`);
    found = [...found, ...page.items.filter(({ id }) => id !== item.id)];
    cursor = page.cursor;
    if (!cursor) break;
  }
  const what = "same correlation id";
  return { found: found.slice(0, RELATED_MAX).map(({ id, queue, state }) => ({ id, queue, state, what })), isPartial: Boolean(cursor) };
}

/** Of an item its job, of a job the items that it lists. */
export function namedBy(item) {
  const job = item.job_id ?? item.job;
  const above = isItem(job) ? [{ id: job, what: "its job" }] : [];
  return [...above, ...claimedBy(item).map((id) => ({ id, what: "in this job" }))];
}

/** A trigger's job says in its payload which items it is about. */
function claimedBy({ payload, payload_is_cut: isCut }) {
  if (!payload || isCut || !payload.includes('"ids"')) return [];
  try {
    const { trigger, ids } = JSON.parse(payload);
    return trigger && Array.isArray(ids) ? ids.filter(isItem) : [];
  } catch {
    return [];
  }
}

async function stateOf(id) {
  try {
    const { queue, state } = await get(`/api/queue-items/${encodeURIComponent(id)}`);
    return { queue, state };
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    return { queue: null, state: null, isGone: problem.status === 404 };
  }
}

/** Nothing becomes of it any more. */
const isOver = (known) => Boolean(known?.isGone) || OVER.has(known?.state);

function relatedLine({ id, queue, state, what, isGone }) {
  return make("li", {}, itemLink(id), make("span", { class: "muted" }, [what, queue].filter(Boolean).join(" · ")),
    state ? stateChip(state) : make("span", { class: "muted" }, isGone ? "not kept" : "not known now"));
}
