// The schedules view: all schedules of the daemon, when they tick next, and what can be done to them.

import { get } from "./api.js";
import { bindAppearance } from "./appearance.js";
import { Beat } from "./beat.js";
import { byId } from "./elements.js";
import { Lines } from "./lines.js";
import { ScheduleForm } from "./schedule_form.js";
import { ScheduleEntry, lineOf } from "./schedule_entry.js";
import { Ticks } from "./ticks.js";
import { bindTokenDialog } from "./token.js";

const ticks = new Ticks();
const lines = new Lines("schedules", {
  newEntry: (name) => new ScheduleEntry(name, ticks, (line) => form.openFor(line.name, line.settings), () => beat.now()),
  onneed: () => beat.soon(),
  words: { empty: "There is no schedule: add one here, with forebay cron add, or in the configuration file." },
});

async function refresh() {
  const { schedules } = await get("/api/v2/schedules");
  lines.show(schedules.map(lineOf));
  await ticks.follow(lines.inSight());
  lines.draw();
}

const beat = new Beat(refresh, () => lines.tick(), { isPatient: true });
const form = new ScheduleForm(() => beat.now());
bindAppearance(byId("appearance"));
bindTokenDialog();
byId("schedules-add").addEventListener("click", () => form.open());
beat.start();
