// A dialog with fields: it closes when what was written has been done, and stays with the daemon's
// words where it has not. Escape and "Cancel" leave it; what was written is kept until it is done.

import { Away, Refused } from "./api.js";
import { byId, setText } from "./elements.js";

export class FormDialog {
  /** `submit` gets the fields by name, trimmed. */
  constructor(id, submit) {
    this.dialog = byId(id);
    this.form = this.dialog.querySelector("form");
    this.problem = this.dialog.querySelector(".problem");
    this.yes = this.form.querySelector("button.primary");
    this.submit = submit;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.form.querySelector("[data-cancel]").addEventListener("click", () => this.dialog.close());
  }

  open() {
    setText(this.problem, "");
    this.dialog.showModal();
  }

  async send() {
    const fields = Object.fromEntries([...new FormData(this.form)].map(([name, value]) => [name, value.trim()]));
    setText(this.problem, "");
    this.yes.disabled = true;
    try {
      await this.submit(fields);
      this.dialog.close();
      this.form.reset();
    } catch (problem) {
      if (!(problem instanceof Away || problem instanceof Refused)) throw problem;
      setText(this.problem, problem instanceof Refused && problem.status === 403
        ? "This token may read, and not change: changes need the admin token." : `Not done: ${problem.message}`);
    } finally {
      this.yes.disabled = false;
    }
  }
}
