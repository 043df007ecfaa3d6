// A line of the schedules view: what it is, when it ticks, run now, enable, disable, delete.

import { change } from "./api.js";
import { confirmed, say } from "./dialogs.js";
import { chip, make, setAttribute, setText } from "./elements.js";
import { button, cell } from "./lines.js";
import { knownZone, moments, until } from "./moments.js";
import { itemAddress } from "./running.js";
import { dateAndTime, time } from "./words.js";

const MISSED = { run_once: "run the last", run_all: "run all", skip: "skip" };

/** A schedule of the API as the page has it. */
export function lineOf(schedule) {
  const { name, queue, settings } = schedule;
  const zone = settings.daily?.zone ?? settings.zone ?? "UTC";
  return {
    key: name, name, queue, zone, next: schedule.next_ms, when: schedule.when, grid: gridOf(schedule), isPeriod: settings.every !== null,
    haystack: [name, queue, schedule.when, zone, settings.description].join(" ").toLowerCase(),
    about: settings.description, isEnabled: schedule.enabled, isFiled: schedule.origin === "file",
    problem: schedule.problem, missed: MISSED[settings.missed] ?? settings.missed, last: schedule.last_ms ?? null,
  };
}

/** Without its zone, which has a column. */
function gridOf({ when, settings }) {
  return settings.daily ? `daily at ${settings.daily.at}` : settings.cron ?? when;
}

export class ScheduleEntry {
  constructor(name, ticks, onchange) {
    this.ticks = ticks;
    this.about = make("span", { class: "muted about" });
    this.problem = make("span", { class: "trouble" });
    this.ran = make("span", { class: "about", hidden: true });
    this.filed = make("span", { class: "muted about" }, "set in the configuration file");
    this.grid = make("code");
    this.zone = make("span", { class: "muted about" });
    this.queue = make("a");
    this.next = make("time", { class: "next" });
    this.later = make("span", { class: "muted later" });
    this.last = cell("last", "Last");
    this.missed = cell("missed", "If missed");
    this.state = cell("state", "State");
    this.runButton = button("Run now", () => this.run(onchange));
    this.switch = button("", () => this.toggle(onchange));
    this.deleteButton = button("Delete", () => this.remove(onchange), "quiet danger");
    this.element = make("tr", { role: "row", "data-key": name },
      cell("name", "Name", make("strong", {}, name), this.about, this.filed, this.problem, this.ran),
      cell("grid", "When", this.grid, this.zone), cell("queue", "Queue", this.queue),
      cell("next", "Next", this.next, this.later), this.last, this.missed, this.state,
      cell("actions", "", make("div", { class: "actions" }, this.runButton, this.switch, this.deleteButton)));
    this.runButton.setAttribute("aria-label", `Run ${name} now`);
    this.deleteButton.setAttribute("aria-label", `Delete ${name}`);
  }

  show(line) {
    this.line = line;
    setText(this.about, line.about);
    setText(this.problem, line.problem ? `Not installed: ${line.problem}` : "");
    setText(this.grid, line.grid);
    setText(this.zone, line.zone);
    setText(this.queue, line.queue);
    setAttribute(this.queue, "href", `/queue-metrics?filter=${encodeURIComponent(line.queue)}`);
    setText(this.missed, line.missed);
    const [word, tone] = line.problem ? ["in trouble", "bad"] : line.isEnabled ? ["enabled", "good"] : ["disabled", "plain"];
    if (this.state.textContent !== word) this.state.replaceChildren(chip(word, tone));
    this.filed.hidden = !line.isFiled;
    this.switch.hidden = this.deleteButton.hidden = line.isFiled;
    const verb = line.isEnabled ? "Disable" : "Enable";
    setText(this.switch, verb);
    setAttribute(this.switch, "aria-label", `${verb} ${line.name}`);
    this.tick();
  }

  /** Times are of the schedule's zone, as its grid is; pointed at, of this browser's. */
  tick() {
    const { line } = this, nowMs = Date.now(), zone = knownZone(line.zone);
    const ticks = this.ticks.of(line), [first, ...later] = moments(ticks, zone, nowMs);
    setText(this.next, ticks.length ? `${first} · ${until(ticks[0], nowMs)}` : "–");
    setAttribute(this.next, "title", ticks.length ? `${dateAndTime(ticks[0])} here` : null);
    setText(this.later, later.join(" · "));
    setText(this.last, line.last === null ? "–" : moments([line.last], zone, nowMs)[0]);
  }

  async run(onchange) {
    const { name, queue } = this.line;
    const text = `What a tick would push goes to ${queue} at once. Its ticks stay as they are.`;
    if (!(await confirmed({ title: `Run ${name} now?`, text, verb: "Run now" }))) return;
    const { id } = await change("POST", `${address(name)}/run`);
    this.ran.replaceChildren(`run by hand at ${time(Date.now())}: `, make("a", { href: itemAddress(id) }, "its item"));
    this.ran.hidden = false;
    say(`${name} was run: its item is in ${queue}.`, "good");
    await onchange();
  }

  async toggle(onchange) {
    const { name, isEnabled } = this.line;
    await change("PATCH", address(name), { settings: { enabled: !isEnabled } });
    say(isEnabled ? `${name} is disabled: its ticks are taken back.` : `${name} ticks again.`);
    await onchange();
  }

  async remove(onchange) {
    const { name } = this.line;
    const text = "Its ticks whose time has not come are taken back. What is due already is delivered.";
    if (!(await confirmed({ title: `Delete the schedule ${name}?`, text, verb: "Delete", isDangerous: true }))) return;
    await change("DELETE", address(name));
    say(`${name} is deleted.`);
    await onchange();
  }
}

const address = (name) => `/api/v2/schedules/${encodeURIComponent(name)}`;
