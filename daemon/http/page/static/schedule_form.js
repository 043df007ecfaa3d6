// The question for a new schedule, and for what is to change of one.

import { change, Refused } from "./api.js";
import { offerQueues, offerZones } from "./choices.js";
import { say } from "./dialogs.js";
import { FormDialog, queueField } from "./form_dialog.js";

const SCHEDULES = "/api/v2/schedules";
/** The daemon's names of what the form calls otherwise. */
const FIELDS = { "daily.at": "at", daily: "at", "daily.zone": "zone" };

export class ScheduleForm {
  constructor(onchange) {
    const words = { title: "A new schedule", verb: "Add" };
    const submit = async (fields, name) => {
      await (name === null ? change("POST", SCHEDULES, newSchedule(fields)) : this.save(fields, name));
      say(name === null ? `${fields.name} is added.` : `${name} is changed.`, "good");
      await onchange();
    };
    this.dialog = new FormDialog("schedule-dialog", words, submit, (problem) =>
      FIELDS[problem.field] ?? problem.field ?? queueField(problem, this.dialog.form.elements, ["queue"])
        ?? (problem.status === 409 ? "name" : undefined));
    this.dialog.form.addEventListener("change", () => this.showKind());
  }

  open() {
    this.dialog.open();
    this.offer();
  }

  openFor(name, settings) {
    this.before = settings;
    this.dialog.openFor(name, fieldsOf(settings));
    this.offer();
  }

  async offer() {
    this.showKind();
    offerZones();
    await offerQueues();
  }

  async save(fields, name) {
    const settings = changes(fields, this.before);
    if (Object.keys(settings).length) await change("PATCH", `${SCHEDULES}/${encodeURIComponent(name)}`, { settings });
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
export function newSchedule({ name, payload, description, ...fields }) {
  const settings = { queue: fields.queue, ...grid(fields), missed: fields.missed };
  return { name, settings: { ...settings, ...(payload && { payload }), ...(description && { description }) } };
}

/** When, as the API has it. Pure. */
function grid({ kind, every, at, cron, zone }) {
  return { every: { every }, daily: { daily: { at, zone: zone || "UTC" } }, cron: zone ? { cron, zone } : { cron } }[kind];
}

/** A schedule's settings as the form has them. Pure. */
export function fieldsOf({ queue, every, daily, cron, zone, missed, description, payload }) {
  return { queue, kind: daily ? "daily" : cron ? "cron" : "every", every: every ?? "", at: daily?.at ?? "", cron: cron ?? "",
    zone: daily?.zone ?? zone ?? "", missed, description, payload: textOf(payload) };
}

/** With lines that end as a textarea has them: it would give back CR LF as LF, which nobody has changed. */
const textOf = (payload) => (typeof payload === "string" ? payload.replace(/\r\n?/g, "\n") : JSON.stringify(payload, null, 2));

/**
 * What was changed, as the API has it: the rest stays, and so does what the form does not show. A
 * payload that was JSON must be JSON again.
 */
export function changes(fields, before) {
  const had = fieldsOf(before), now = { ...had, ...fields };
  const found = {};
  for (const name of ["queue", "missed", "description"]) if (now[name] !== had[name]) found[name] = now[name];
  if (["kind", "every", "at", "cron", "zone"].some((name) => now[name] !== had[name])) {
    Object.assign(found, { every: null, daily: null, cron: null, zone: null }, grid(now));
  }
  if (now.payload !== had.payload.trim()) found.payload = typeof before.payload === "string" ? now.payload : parsed(now.payload);
  return found;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (problem) {
    throw new Refused(422, { detail: `It was JSON, and is not any more: ${problem.message}`, field: "payload" });
  }
}
