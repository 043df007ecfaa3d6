// The triggers view: what makes jobs of what waits in queues, what each has made, and what can be
// done to it. Triggers of type TIME are schedules, which have a view of their own.

import { get } from "./api.js";
import { bindAppearance } from "./appearance.js";
import { Beat } from "./beat.js";
import { byId, setText } from "./elements.js";
import { Lines } from "./lines.js";
import { bindTokenDialog } from "./token.js";
import { TriggerEntry, lineOf } from "./trigger_entry.js";
import { TriggerForm } from "./trigger_form.js";
import { count } from "./words.js";

const lines = new Lines("triggers", {
  newEntry: (name) => new TriggerEntry(name, (line) => form.openFor(line.name, line.settings), () => beat.now()),
  onneed: () => beat.soon(),
  words: { empty: "No trigger polls a queue: add one here, with forebay triggers add, or in the configuration file." },
});

async function refresh() {
  const { triggers } = await get("/api/v2/triggers");
  const polling = triggers.filter(({ type }) => type === "QUEUE");
  lines.show(polling.map(lineOf));
  const timed = triggers.length - polling.length;
  byId("triggers-timed").hidden = !timed;
  setText(byId("triggers-timed-count"), timed === 1 ? "1 trigger is" : `${count(timed)} triggers are`);
  await Promise.all([...lines.drawn.values()].map((entry) => entry.follow()));
}

const beat = new Beat(refresh, () => {}, { isPatient: true });
const form = new TriggerForm(() => beat.now());
bindAppearance(byId("appearance"));
bindTokenDialog();
byId("triggers-add").addEventListener("click", () => form.open());
beat.start();
