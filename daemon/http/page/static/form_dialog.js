// A dialog with fields, that adds something or changes it. It is done when what was written has been
// done, and stays with the daemon's words where it has not: beside the field that they are about, or
// at its end. Escape and "Cancel" leave it; what was written of something new is kept until it is done.

import { Away, Refused } from "./api.js";
import { byId, make, setText } from "./elements.js";

export class FormDialog {
  /**
   * `words`: what is said where something new is written, { title, verb }. `submit` gets the fields by
   * name, trimmed, and the name of what is changed, or null. `fieldOf` finds the field that a refusal
   * is about, if it is not named as the daemon names it.
   */
  constructor(id, words, submit, fieldOf = (problem) => problem.field) {
    this.dialog = byId(id);
    this.form = this.dialog.querySelector("form");
    this.title = this.dialog.querySelector("h2");
    this.problem = this.dialog.querySelector(".problem");
    this.yes = this.form.querySelector("button.primary");
    this.words = words;
    this.submit = submit;
    this.fieldOf = fieldOf;
    this.changed = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.form.addEventListener("input", (event) => this.unmark(event.target));
    this.form.querySelector("[data-cancel]").addEventListener("click", () => this.dialog.close());
  }

  /** To add something. */
  open() {
    if (this.changed !== null) this.form.reset();
    this.begin(null, this.words);
  }

  /** To change what has this name; `values` are its fields. */
  openFor(name, values) {
    this.form.reset();
    for (const [field, value] of Object.entries({ name, ...values })) this.form.elements[field].value = value;
    this.begin(name, { title: `Change ${name}`, verb: "Save" });
  }

  begin(changed, { title, verb }) {
    this.changed = changed;
    this.clear();
    setText(this.title, title);
    setText(this.yes, verb);
    // What it is called is what it is: something of another name is something else.
    this.form.elements.name.readOnly = changed !== null;
    this.dialog.showModal();
    if (changed !== null) [...this.form.elements].find((field) => field.type !== "fieldset" && !field.readOnly)?.focus();
  }

  async send() {
    const fields = Object.fromEntries([...new FormData(this.form)].map(([name, value]) => [name, value.trim()]));
    this.clear();
    this.yes.disabled = true;
    try {
      await this.submit(fields, this.changed);
      this.dialog.close();
      this.form.reset();
    } catch (problem) {
      if (!(problem instanceof Away || problem instanceof Refused)) throw problem;
      this.show(problem);
    } finally {
      this.yes.disabled = false;
    }
  }

  show(problem) {
    if (problem.status === 403) {
      setText(this.problem, "This token may read, and not change: changes need the admin token.");
      return;
    }
    const field = problem instanceof Refused ? this.form.elements[this.fieldOf(problem) ?? ""] : null;
    if (!(field instanceof HTMLElement) || field.disabled) setText(this.problem, `Not done: ${problem.message}`);
    else this.mark(field, withoutNames(problem.message, [this.form.elements.name.value.trim(), problem.field]));
  }

  /** Says beside a field what is wrong with it; screen readers hear it with the field. */
  mark(field, text) {
    const said = make("span", { class: "problem", id: `${this.dialog.id}-${field.name}-problem`, role: "alert" }, text);
    field.closest("label").append(said);
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", said.id);
    field.focus();
  }

  unmark(field) {
    if (!field.hasAttribute("aria-invalid")) return;
    byId(field.getAttribute("aria-describedby"))?.remove();
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }

  clear() {
    setText(this.problem, "");
    for (const field of this.form.querySelectorAll("[aria-invalid]")) this.unmark(field);
  }
}

/** Beside a field it need not be said of what and of which field it is. Pure. */
function withoutNames(text, names) {
  return names.reduce((rest, name) => (rest.startsWith(`${name}: `) ? rest.slice(name.length + 2) : rest), text);
}

/** Which of the fields that name a queue a refusal is about: it ends with that name. Pure. */
export function queueField(problem, fields, named) {
  if (problem.status !== 404) return undefined;
  return named.find((name) => problem.message.endsWith(` ${fields[name].value.trim()}`));
}
