// A question before what cannot be undone, and a line that says what came of an action.

import { Away, Refused } from "./api.js";
import { byId, setText } from "./elements.js";

/** Whether the answer was yes. The focus begins at "Cancel". */
export function confirmed({ title, text, verb, isDangerous = false }) {
  const dialog = byId("confirm-dialog"), yes = byId("confirm-yes");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(yes, verb);
  yes.className = isDangerous ? "danger" : "primary";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

/** Says what was done, or why not, once; screen readers hear it. */
export function say(text, tone = "plain") {
  const line = byId("said");
  line.className = `said ${tone}`;
  setText(line, text);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => setText(line, ""), 8000);
}

/** Does `action` with its button out of use, and says so if it fails. */
export async function acting(button, action) {
  const hadFocus = document.activeElement === button;
  button.disabled = true;
  try {
    await action();
  } catch (problem) {
    if (problem instanceof Refused && problem.status === 403) {
      say("This token may read, and not change: changes need the admin token.", "bad");
    } else if (problem instanceof Away || problem instanceof Refused) {
      say(`Not done: ${problem.message}`, "bad");
    } else throw problem;
  } finally {
    button.disabled = false;
    if (hadFocus && document.activeElement === document.body) button.focus();
  }
}
