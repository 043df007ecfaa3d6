// The question for a new schedule. What the daemon says against it is shown beside what was written.

import { change } from "./api.js";
import { offerQueues, offerZones } from "./choices.js";
import { say } from "./dialogs.js";
import { FormDialog } from "./form_dialog.js";

export class ScheduleForm {
  constructor(onchange) {
    this.dialog = new FormDialog("schedule-dialog", async (fields) => {
      await change("POST", "/api/v2/schedules", newSchedule(fields));
      say(`${fields.name} is added.`, "good");
      await onchange();
    });
    this.dialog.form.addEventListener("change", () => this.showKind());
  }

  async open() {
    this.dialog.open();
    this.showKind();
    offerZones();
    await offerQueues();
  }

  /** The fields of the kind that is chosen; the others are out of use, and not asked for. */
  showKind() {
    const kind = new FormData(this.dialog.form).get("kind");
    for (const part of this.dialog.form.querySelectorAll("[data-kinds]")) {
      const isWanted = part.dataset.kinds.split(" ").includes(kind);
      part.hidden = !isWanted;
      for (const field of part.querySelectorAll("input")) field.disabled = !isWanted;
    }
  }
}

/** The API's object, of what was written. Pure. */
export function newSchedule({ name, queue, kind, every, at, cron, zone, payload, missed, description }) {
  const when = { every: { every }, daily: { daily: { at, zone: zone || "UTC" } },
    cron: zone ? { cron, zone } : { cron } }[kind];
  return { name, settings: { queue, ...when, missed, ...(payload && { payload }), ...(description && { description }) } };
}
