// The item view: two tabs about one item, and what can be done to it.

import { change, get, Refused } from "./api.js";
import { bindAppearance } from "./appearance.js";
import { Beat } from "./beat.js";
import { acting, confirmed, say } from "./dialogs.js";
import { byId, setText } from "./elements.js";
import { HistoryTab } from "./item_history.js";
import { showOverview } from "./item_overview.js";
import { WAITING, sentence, stateChip } from "./item_parts.js";
import { Tabs } from "./tabs.js";
import { bindTokenDialog } from "./token.js";

const id = byId("item").dataset.id;
const address = `/api/queue-items/${encodeURIComponent(id)}`;
let shown = "", forgotten = null;

async function refresh() {
  let item;
  try {
    item = await get(address);
  } catch (problem) {
    if (!(problem instanceof Refused) || ![404, 422].includes(problem.status)) throw problem;
    showNothing(problem);
    return;
  }
  // A trigger's job has the id of its claim there, which is nobody's write.
  if (item.headers?.trigger) item.receipt = null;
  const receipt = item.receipt ? await receiptOf(item.receipt) : null;
  const said = JSON.stringify([item, receipt]);
  if (said !== shown) show(item, receipt);
  shown = said;
  if (tabs.opened === "history") await past.follow();
}

/** The receipt of the write that it came with; null: it has expired. */
async function receiptOf(write) {
  if (write === forgotten) return null;
  try {
    return await get(`/api/v2/receipts/${encodeURIComponent(write)}`);
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    if (problem.status === 404) forgotten = write;
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
  shown = "";
}

function show(item, receipt) {
  document.title = `${item.queue} ${item.state.toLowerCase()} · forebay`;
  byId("item-state").replaceChildren(stateChip(item.state));
  byId("item-actions").hidden = item.state !== "FAILED" && !WAITING.has(item.state);
  byId("item-retry").hidden = item.state !== "FAILED";
  showOverview(item, receipt);
  past.show(item);
  byId("item-problem").hidden = true;
  byId("item-body").hidden = false;
}

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

const past = new HistoryTab();
const beat = new Beat(refresh, () => {});
const tabs = new Tabs(byId("item-tabs"), () => beat.soon());
bindAppearance(byId("appearance"));
bindTokenDialog();
byId("item-retry").addEventListener("click", (event) => acting(event.currentTarget, retry));
byId("item-delete").addEventListener("click", (event) => acting(event.currentTarget, remove));
beat.start();
