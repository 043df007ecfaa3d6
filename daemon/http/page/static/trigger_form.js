// The question for a new trigger of type QUEUE, and for what is to change of one.

import { change } from "./api.js";
import { offerQueues } from "./choices.js";
import { say } from "./dialogs.js";
import { FormDialog, queueField } from "./form_dialog.js";

const TRIGGERS = "/api/v2/triggers";
const KEYS = ["description", "queue", "target", "polling_interval", "batch_size"];

export class TriggerForm {
  constructor(onchange) {
    const words = { title: "A new trigger", verb: "Add" };
    const submit = async (fields, name) => {
      const { queue } = fields;
      await (name === null ? change("POST", TRIGGERS, newTrigger(fields)) : this.save(fields, name));
      say(name === null ? `${fields.name} is added: ${queue} is polled by it alone.` : `${name} is changed.`, "good");
      await onchange();
    };
    this.dialog = new FormDialog("trigger-dialog", words, submit, (problem) =>
      problem.field ?? queueField(problem, this.dialog.form.elements, ["queue", "target"])
        ?? (problem.status === 409 ? "name" : undefined));
  }

  open() {
    this.dialog.open();
    offerQueues();
  }

  openFor(name, settings) {
    this.before = settings;
    this.dialog.openFor(name, fieldsOf(settings));
    offerQueues();
  }

  async save(fields, name) {
    const settings = changes(fields, this.before);
    if (Object.keys(settings).length) await change("PATCH", `${TRIGGERS}/${encodeURIComponent(name)}`, { settings });
  }
}

/** The API's object, of what was written. Pure. */
export function newTrigger({ name, description, ...fields }) {
  const settings = { type: "QUEUE", ...fields, batch_size: Number(fields.batch_size) };
  return { name, settings: description ? { ...settings, description } : settings };
}

/** A trigger's settings as the form has them. Pure. */
const fieldsOf = (settings) => Object.fromEntries(KEYS.map((key) => [key, String(settings[key])]));

/** What was changed, as the API has it: the rest stays. Pure. */
export function changes(fields, before) {
  const had = fieldsOf(before), names = KEYS.filter((key) => fields[key] !== had[key]);
  return Object.fromEntries(names.map((key) => [key, key === "batch_size" ? Number(fields[key]) : fields[key]]));
}
