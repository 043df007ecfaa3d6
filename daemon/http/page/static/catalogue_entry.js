// What the lines of schedules and of triggers share: the name and what is said under it, a chip for
// the state, and the buttons: run now, change, a switch, delete. What the configuration file defines
// can't be changed or deleted here, and says so.

import { change } from "./api.js";
import { confirmed, say } from "./dialogs.js";
import { chip, make, setAttribute, setText } from "./elements.js";
import { button, cell } from "./lines.js";

const FILED = "set in the configuration file, and changed there";

export class CatalogueEntry {
  /** `kind`: what the API and people call it, { path, noun }. `open`: to change it, in its form. */
  constructor(name, kind, open, onchange) {
    this.address = `/api/v2/${kind.path}/${encodeURIComponent(name)}`;
    this.noun = kind.noun;
    this.about = make("span", { class: "muted about" });
    this.filed = make("span", { class: "muted about" }, FILED);
    this.problem = make("span", { class: "trouble" });
    this.ran = make("span", { class: "about", hidden: true });
    this.state = cell("state", "State");
    this.runButton = button("Run now", () => this.run(onchange));
    this.changeButton = make("button", { type: "button", class: "quiet", onclick: () => open(this.line) }, "Change …");
    this.switch = button("", () => this.toggle(onchange));
    this.deleteButton = button("Delete", () => this.remove(onchange), "quiet danger");
    this.runButton.setAttribute("aria-label", `Run ${name} now`);
    this.changeButton.setAttribute("aria-label", `Change ${name}`);
    this.deleteButton.setAttribute("aria-label", `Delete ${name}`);
    this.element = make("tr", { role: "row", "data-key": name },
      cell("name", "Name", make("strong", {}, name), this.about, this.filed, this.problem, this.ran),
      ...this.cells(), this.state,
      cell("actions", "", make("div", { class: "actions" }, this.runButton, this.changeButton, this.switch, this.deleteButton)));
  }

  /** `verb`: of the switch; null: there is none. */
  showShared(line, [word, tone], verb) {
    this.line = line;
    setText(this.about, line.about);
    this.filed.hidden = !line.isFiled;
    this.changeButton.hidden = this.deleteButton.hidden = line.isFiled;
    if (this.state.textContent !== word) this.state.replaceChildren(chip(word, tone));
    this.switch.hidden = verb === null;
    setText(this.switch, verb ?? "");
    setAttribute(this.switch, "aria-label", verb && `${verb} ${line.name}`);
  }

  /** What was made by hand, and a link to it. */
  showRun(text, link) {
    this.ran.replaceChildren(text, link);
    this.ran.hidden = false;
  }

  async remove(onchange) {
    const { name } = this.line;
    const title = `Delete the ${this.noun} ${name}?`;
    if (!(await confirmed({ title, text: this.farewell(), verb: "Delete", isDangerous: true }))) return;
    await change("DELETE", this.address);
    say(`${name} is deleted.`);
    await onchange();
  }
}

export function showQueue(link, queue) {
  setText(link, queue);
  setAttribute(link, "href", `/queue-metrics?filter=${encodeURIComponent(queue)}`);
}
