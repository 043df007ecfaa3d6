// A line of the schedules view: when it ticks, the state of the last tick, and missed ticks.

import { change } from "./api.js";
import { CatalogueEntry, showQueue } from "./catalogue_entry.js";
import { confirmed, say } from "./dialogs.js";
import { chip, make, setAttribute, setText } from "./elements.js";
import { cell } from "./lines.js";
import { knownZone, moments, until } from "./moments.js";
import { itemAddress } from "./running.js";
import { count, dateAndTime, time } from "./words.js";

const MISSED = { run_once: "run the last", run_all: "run all", skip: "skip" };
const KIND = { path: "schedules", noun: "schedule" };
const LAST = { waiting: ["waits", "plain"], started: ["started", "plain"], done: ["done", "good"], dead: ["dead letter", "bad"],
  missed: ["missed", "warn"] };

/** A schedule of the API as the page has it. */
export function lineOf(schedule) {
  const { name, queue, settings } = schedule;
  const zone = settings.daily?.zone ?? settings.zone ?? "UTC";
  return {
    key: name, name, queue, zone, next: schedule.next_ms, when: schedule.when, grid: gridOf(schedule), isPeriod: settings.every !== null,
    haystack: [name, queue, schedule.when, zone, settings.description].join(" ").toLowerCase(), settings,
    about: settings.description, isEnabled: schedule.enabled, isFiled: schedule.origin === "file",
    problem: schedule.problem, missed: MISSED[settings.missed] ?? settings.missed,
    last: schedule.last_ms, lastState: schedule.last_state, missedTotal: schedule.missed_total, missedMs: schedule.missed_ms,
  };
}

/** Without its zone, which has a column. */
function gridOf({ when, settings }) {
  return settings.daily ? `daily at ${settings.daily.at}` : settings.cron ?? when;
}

/** In a word, and its tone. Pure. */
export function stateOf({ problem, isEnabled }) {
  return problem ? ["in trouble", "bad"] : isEnabled ? ["enabled", "good"] : ["disabled", "plain"];
}

export class ScheduleEntry extends CatalogueEntry {
  constructor(name, ticks, open, onchange) {
    super(name, KIND, open, onchange);
    this.ticks = ticks;
  }

  cells() {
    this.grid = make("code");
    this.zone = make("span", { class: "muted about" });
    this.queue = make("a");
    this.next = make("time", { class: "next" });
    this.later = make("span", { class: "muted later" });
    this.last = make("time");
    this.lastState = make("span", { class: "after" });
    this.lost = make("span", { class: "about" });
    this.missed = cell("missed", "If missed");
    return [cell("grid", "When", this.grid, this.zone), cell("queue", "Queue", this.queue),
      cell("next", "Next", this.next, this.later), cell("last", "Last", this.last, this.lastState, this.lost), this.missed];
  }

  show(line) {
    this.showShared(line, stateOf(line), line.isFiled ? null : line.isEnabled ? "Disable" : "Enable");
    setText(this.problem, line.problem ? `Not installed: ${line.problem}` : "");
    setText(this.grid, line.grid);
    setText(this.zone, line.zone);
    showQueue(this.queue, line.queue);
    setText(this.missed, line.missed);
    setText(this.lost, line.missedTotal ? `${count(line.missedTotal)} missed` : "");
    setAttribute(this.lost, "title", line.missedTotal ? `the latest on ${dateAndTime(line.missedMs)}` : null);
    this.showLast(line);
    this.tick();
  }

  showLast({ last, lastState }) {
    const [word, tone] = last === null ? ["", ""] : LAST[lastState] ?? ["not known", "plain"];
    if (this.lastState.textContent !== word) this.lastState.replaceChildren(...(word ? [chip(word, tone)] : []));
  }

  /** Times are of the schedule's zone, as its grid is; pointed at, of this browser's. */
  tick() {
    const { line } = this, nowMs = Date.now(), zone = knownZone(line.zone);
    const ticks = this.ticks.of(line), [first, ...later] = moments(ticks, zone, nowMs);
    setText(this.next, ticks.length ? `${first} · ${until(ticks[0], nowMs)}` : "–");
    setAttribute(this.next, "title", ticks.length ? `${dateAndTime(ticks[0])} here` : null);
    setText(this.later, later.join(" · "));
    setText(this.last, line.last === null ? "–" : moments([line.last], zone, nowMs)[0]);
    setAttribute(this.last, "title", line.last === null ? null : `${dateAndTime(line.last)} here`);
  }

  async run(onchange) {
    const { name, queue } = this.line;
    const text = `What a tick would push goes to ${queue} at once. Its ticks stay as they are.`;
    if (!(await confirmed({ title: `Run ${name} now?`, text, verb: "Run now" }))) return;
    const { id } = await change("POST", `${this.address}/run`);
    this.showRun(`run by hand at ${time(Date.now())}: `, make("a", { href: itemAddress(id) }, "its item"));
    say(`${name} was run: its item is in ${queue}.`, "good");
    await onchange();
  }

  async toggle(onchange) {
    const { name, isEnabled } = this.line;
    await change("PATCH", this.address, { settings: { enabled: !isEnabled } });
    say(isEnabled ? `${name} is disabled: its ticks are taken back.` : `${name} ticks again.`);
    await onchange();
  }

  farewell() {
    return "Its ticks whose time has not come are taken back. What is due already is delivered.";
  }
}
