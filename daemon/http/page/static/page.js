// The Queue Metrics page: its parts, and one refresh for all of them.

import { bindAppearance } from "./appearance.js";
import { Beat } from "./beat.js";
import { BreakerList } from "./breakers.js";
import { DeadLetters } from "./dead.js";
import { byId } from "./elements.js";
import { Live } from "./live.js";
import { QueueList } from "./queue_list.js";
import { QueueTable } from "./queue_table.js";
import { RunningPanel } from "./running.js";
import { Sources } from "./sources.js";
import { figuresOf, showFigures, showSpool, showStates } from "./states.js";
import { bindTip } from "./tip.js";
import { bindTokenDialog } from "./token.js";

const sources = new Sources();
const table = new QueueTable();
const running = new RunningPanel();
const again = () => {
  sources.forget();
  return beat.now();
};
const list = new QueueList(again, () => beat.soon());
const dead = new DeadLetters(again);
const breakers = new BreakerList(again);
table.onfilter = (text) => {
  list.filterBy(text);
  dead.filterBy(text);
};

async function refresh() {
  const names = list.namesShown();
  const seen = await sources.look(names, live.stores);
  table.show(seen.rows, seen.nowMs);
  byId("queue-partial").hidden = !seen.isPartial;
  running.show(seen.tasks);
  list.show(seen.queues, seen.nowMs);
  showSpool(seen.spool);
  showStates("stores", seen.stores, "No store answers.");
  breakers.show(seen.breakers);
  dead.show(seen.dead.groups, seen.nowMs, seen.dead.isPartial);
  showFigures(figuresOf(seen.figures));
  beat.remarks = seen.problems;
  // Charts that were drawn just now have nothing to show yet.
  if (list.namesShown().some((name) => !names.includes(name))) beat.wantsMore = true;
}

const beat = new Beat(refresh, () => running.tick());

const live = new Live(() => beat.now());

bindAppearance(byId("appearance"));
bindTokenDialog();
bindTip();
const wanted = new URLSearchParams(location.search).get("filter");
if (wanted) {
  byId("filter").value = wanted;
  table.filterBy(wanted);
}
beat.start();
live.start();
