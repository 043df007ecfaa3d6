// The first tab of the item view: what the item is, its payload, its headers, what went wrong last.

import { arrange, byId, make, setText } from "./elements.js";
import { WAITING, errorLine, itemLink, pairs, pretty, sentence } from "./item_parts.js";
import { age, bytes, count } from "./words.js";

/** `receipt`: of the write that it came with; null: it has expired. */
export function showOverview(item, receipt) {
  const last = (item.errors ?? []).at(-1);
  byId("last-error").hidden = !last;
  arrange(byId("last-error-list"), last ? [errorLine(last)] : []);
  arrange(byId("item-about"), pairs(about(item, receipt)));
  const headers = Object.entries(item.headers ?? {});
  arrange(byId("item-headers"), pairs(headers));
  byId("headers-empty").hidden = headers.length > 0;
  showPayload(item);
}

function about(item, receipt) {
  const job = item.job_id ?? item.job;
  return [
    ["Queue", make("a", { href: `/queue-metrics?filter=${encodeURIComponent(item.queue)}` }, item.queue)],
    ["Flow", item.flow], ["Action", item.action], ["Key", item.key],
    ["Priority", String(item.priority)],
    ["Attempts", String(item.attempt)],
    ["Owner", item.owner],
    ["Waiting for", WAITING.has(item.state) ? age(Date.now() - item.enqueued_ms) : null],
    ["Correlation id", item.correlation_id],
    ["Trace", item.traceparent],
    ["Receipt", item.receipt && make("span", {}, make("code", {}, item.receipt), make("br"), receiptWords(receipt))],
    ["Job", job && itemLink(job)],
    ["Made by", madeBy(item.headers ?? {})],
  ];
}

/** The schedule or the trigger that has pushed it by itself. */
function madeBy({ schedule, trigger }) {
  const name = schedule ?? trigger;
  if (!name) return null;
  const [kind, view] = schedule ? ["schedule", "schedules"] : ["trigger", "triggers"];
  return make("span", {}, `the ${kind} `, make("a", { href: `/queue-metrics/${view}?filter=${encodeURIComponent(name)}` }, name));
}

function receiptWords(receipt) {
  if (receipt === null) return "the receipt of its write has expired";
  const parts = ["accepted", "delivered", "dead", "dropped", "deleted", "lost", "pending"];
  return parts.filter((name) => receipt[name]).map((name) => `${count(receipt[name])} ${name}`).join(" · ");
}

function showPayload(item) {
  const size = item.bytes ?? null;
  setText(byId("payload-size"), size === null ? "" : bytes(size));
  const text = item.payload ?? item.payload_b64 ?? null;
  const isText = item.payload !== undefined && item.payload !== null;
  byId("payload").hidden = !text;
  setText(byId("payload"), isText && !item.payload_is_cut ? pretty(text) : text ?? "");
  const note = item.payload_problem ? sentence(item.payload_problem)
    : text === null ? "This token does not show payloads."
      : text === "" ? "It is empty."
        : isText ? "" : "It is not text: shown as base64.";
  const cut = item.payload_is_cut ? " Only its beginning is shown." : "";
  setText(byId("payload-note"), note + cut);
  byId("payload-note").hidden = !(note + cut);
}
