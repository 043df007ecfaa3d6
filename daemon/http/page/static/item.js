// The item view: where an item stands, its life, its headers, its payload, its errors.

import { change, get, Refused } from "./api.js";
import { bindAppearance } from "./appearance.js";
import { Beat } from "./beat.js";
import { acting, confirmed, say } from "./dialogs.js";
import { arrange, byId, chip, make, setText } from "./elements.js";
import { bindTokenDialog } from "./token.js";
import { age, bytes, count, dateAndTime, took } from "./words.js";

const id = byId("item").dataset.id;
const address = `/api/queue-items/${encodeURIComponent(id)}`;
const STATES = { DONE: "good", FAILED: "bad", DELETED: "plain", RUNNING: "warn" };
const EVENTS = { delivered: "good", dead: "bad", failed: "bad", running: "warn" };
const WAITING = new Set(["SPOOLED", "SCHEDULED", "QUEUED", "COLD_QUEUED"]);
const ITEM_ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d{1,4}$/i;
let shown = "", receipt = null;

async function refresh() {
  let item;
  try {
    item = await get(address);
  } catch (problem) {
    if (!(problem instanceof Refused) || ![404, 422].includes(problem.status)) throw problem;
    showNothing(problem);
    return;
  }
  receipt = item.receipt ? await receiptOf(item.receipt) : null;
  const said = JSON.stringify([item, receipt]);
  if (said !== shown) show(item);
  shown = said;
}

/** What became of the write that it came with; null: that is not kept any more. */
async function receiptOf(write) {
  try {
    return await get(`/api/v2/receipts/${encodeURIComponent(write)}`);
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    return null;
  }
}

/** What is gone is no failure of the page: what was delivered is kept only where its queue does. */
function showNothing(problem) {
  setText(byId("item-problem"), `${sentence(problem.message)} Items that were delivered are kept only by queues with a history.`);
  byId("item-problem").hidden = false;
  byId("item-body").hidden = true;
  byId("item-actions").hidden = true;
  byId("item-state").replaceChildren();
}

function show(item) {
  document.title = `${item.queue} ${item.state.toLowerCase()} · forebay`;
  byId("item-state").replaceChildren(chip(item.state, STATES[item.state]));
  showActions(item);
  arrange(byId("timeline"), item.timeline.map(eventLine));
  arrange(byId("item-about"), pairs(about(item)));
  const headers = Object.entries(item.headers ?? {});
  arrange(byId("item-headers"), pairs(headers));
  byId("headers-empty").hidden = headers.length > 0;
  showPayload(item);
  const errors = item.errors ?? [];
  byId("errors-panel").hidden = !errors.length;
  arrange(byId("errors"), [...errors].reverse().map(errorLine));
  byId("item-problem").hidden = true;
  byId("item-body").hidden = false;
}

function showActions({ state }) {
  byId("item-actions").hidden = state !== "FAILED" && !WAITING.has(state);
  byId("item-retry").hidden = state !== "FAILED";
}

function eventLine(event, index, all) {
  const before = all.slice(0, index).findLast((other) => other.at_ms !== null);
  const after = event.at_ms !== null && before ? event.at_ms - before.at_ms : null;
  return make("li", { "data-tone": EVENTS[event.what] ?? null },
    make("time", {}, event.at_ms === null ? "now" : dateAndTime(event.at_ms),
      after === null || after < 0 ? null : make("span", { class: "after" }, `after ${took(after)}`)),
    make("p", {}, make("strong", {}, event.what.replace("_", " ")), event.text ? " " : null,
      event.text ? make("span", { class: "detail" }, event.text) : null));
}

function about(item) {
  const found = [
    ["Queue", make("a", { href: `/queue-metrics?filter=${encodeURIComponent(item.queue)}` }, item.queue)],
    ["Flow", item.flow], ["Action", item.action], ["Key", item.key],
    ["Priority", String(item.priority)],
    ["Attempts", String(item.attempt)],
    ["Owner", item.owner],
    ["Waiting for", WAITING.has(item.state) ? age(Date.now() - item.enqueued_ms) : null],
    ["Correlation id", item.correlation_id],
    ["Receipt", item.receipt && make("span", {}, make("code", {}, item.receipt), make("br"), receiptWords())],
    ["Job", item.job && jobLink(item.job)],
  ];
  return found.filter(([, value]) => value !== null && value !== undefined && value !== "");
}

function receiptWords() {
  if (receipt === null) return "what became of its write is not kept any more";
  const parts = ["accepted", "delivered", "dead", "dropped", "deleted", "pending"];
  return parts.filter((name) => receipt[name]).map((name) => `${count(receipt[name])} ${name}`).join(" · ");
}

/** A job is an item of its own, or has an id that somebody else gave it. */
function jobLink(job) {
  return ITEM_ID.test(job) ? make("a", { href: `/queue-metrics/items/${encodeURIComponent(job)}` }, job) : job;
}

function pairs(entries) {
  return entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
}

function showPayload(item) {
  const size = item.bytes ?? null;
  setText(byId("payload-size"), size === null ? "" : bytes(size));
  const text = item.payload ?? item.payload_b64 ?? null;
  byId("payload").hidden = text === null;
  setText(byId("payload"), item.payload === undefined || text === null ? text ?? "" : pretty(text, item.payload_is_cut));
  const note = item.payload_problem ? sentence(item.payload_problem)
    : text === null ? "This token does not show payloads."
      : item.payload === undefined ? "It is not text: shown as base64." : "";
  const cut = item.payload_is_cut ? " Only its beginning is shown." : "";
  setText(byId("payload-note"), note + cut);
  byId("payload-note").hidden = !(note + cut);
}

/** JSON with its lines; everything else as it is. */
function pretty(text, isCut) {
  if (isCut || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function errorLine(error) {
  return make("li", {},
    make("time", {}, dateAndTime(error.at_ms), make("span", { class: "after" }, ` attempt ${count(error.attempt)}`)),
    make("p", {}, error.text));
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

async function retry() {
  const text = "It goes back to its queue and is delivered again. What was sent cannot be called back.";
  if (!(await confirmed({ title: "Retry this dead letter?", text, verb: "Retry" }))) return;
  await change("POST", `/api/v2/dead-letters/${encodeURIComponent(id)}/retry`);
  say("It waits for delivery again.", "good");
  await beat.now();
}

async function remove() {
  const text = "It will not be delivered, and nothing brings it back.";
  if (!(await confirmed({ title: "Delete this item?", text, verb: "Delete", isDangerous: true }))) return;
  await change("DELETE", address);
  say("Deleted.");
  await beat.now();
}

const beat = new Beat(refresh, () => {});
bindAppearance(byId("appearance"));
bindTokenDialog();
byId("item-retry").addEventListener("click", (event) => acting(event.currentTarget, retry));
byId("item-delete").addEventListener("click", (event) => acting(event.currentTarget, remove));
beat.start();
