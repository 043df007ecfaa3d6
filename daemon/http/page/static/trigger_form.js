// The question for a new trigger of type QUEUE.

import { change } from "./api.js";
import { say } from "./dialogs.js";
import { FormDialog } from "./form_dialog.js";

export function triggerForm(onchange) {
  return new FormDialog("trigger-dialog", async (fields) => {
    await change("POST", "/api/v2/triggers", newTrigger(fields));
    say(`${fields.name} is added: ${fields.queue} is polled by it alone.`, "good");
    await onchange();
  });
}

/** The API's object, of what was written. Pure. */
export function newTrigger({ name, queue, target, interval, batch, description }) {
  const settings = { type: "QUEUE", queue, target, polling_interval: interval, batch_size: Number(batch) };
  return { name, settings: description ? { ...settings, description } : settings };
}
