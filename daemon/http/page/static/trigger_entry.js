// A line of the triggers view: what it polls, what it makes of it, and the jobs that are not done.

import { change, get, Refused } from "./api.js";
import { CatalogueEntry, showQueue } from "./catalogue_entry.js";
import { confirmed, say } from "./dialogs.js";
import { arrange, make, setText } from "./elements.js";
import { linked } from "./item_parts.js";
import { cell } from "./lines.js";
import { itemAddress } from "./running.js";
import { age, count, items } from "./words.js";

const JOBS_MAX = 20;
const KIND = { path: "triggers", noun: "trigger" };

/** A trigger of the API as the page has it. */
export function lineOf(trigger) {
  const { name, queue, target, settings } = trigger;
  return {
    key: name, name, queue, target, when: trigger.when, jobs: trigger.jobs,
    haystack: [name, queue, target, settings.description].join(" ").toLowerCase(), settings,
    batch: settings.batch_size, about: settings.description, isFiled: trigger.origin === "file",
    isEnabled: trigger.enabled, isPaused: trigger.paused, failures: trigger.failures, problem: trigger.problem,
    runsHere: trigger.runs_here,
  };
}

/** In a word, and its tone. Pure. */
export function stateOf(line) {
  if (!line.isEnabled) return ["disabled", "plain"];
  if (line.isPaused) return ["paused", "warn"];
  if (line.problem) return [line.failures > 1 ? `failed ${count(line.failures)} times` : "failed", "bad"];
  return line.runsHere ? ["runs here", "good"] : ["runs elsewhere", "plain"];
}

/** What the switch does. What the file defines can be paused here; what is disabled there can't be enabled. */
function verbOf({ isFiled, isEnabled, isPaused }) {
  if (!isEnabled) return isFiled ? null : "Enable";
  return isPaused ? "Resume" : "Pause";
}

export class TriggerEntry extends CatalogueEntry {
  constructor(name, open, onchange) {
    super(name, KIND, open, onchange);
    this.jobs.addEventListener("toggle", () => this.jobs.open && onchange());
  }

  cells() {
    this.queue = make("a");
    this.when = make("span", { class: "muted about" });
    this.batch = cell("batch", "Claims");
    this.target = make("a");
    this.jobCount = make("summary");
    this.jobList = make("ul");
    this.jobs = make("details", {}, this.jobCount, this.jobList);
    this.noJobs = make("span", { class: "muted" }, "none");
    return [cell("queue", "Polls", this.queue, this.when), this.batch, cell("target", "Jobs go to", this.target),
      cell("jobs", "Jobs not done", this.noJobs, this.jobs)];
  }

  show(line) {
    this.showShared(line, stateOf(line), verbOf(line));
    if (this.problem.textContent !== line.problem) this.problem.replaceChildren(...linked(line.problem));
    showQueue(this.queue, line.queue);
    setText(this.when, line.when);
    setText(this.batch, `up to ${items(line.batch)} a job`);
    showQueue(this.target, line.target);
    this.noJobs.hidden = line.jobs > 0;
    this.jobs.hidden = !line.jobs;
    setText(this.jobCount, count(line.jobs));
    this.runButton.hidden = !line.isEnabled;
  }

  /** The jobs that are not done, where somebody has opened them. */
  async follow() {
    if (!this.jobs.open || !this.line.jobs) return;
    let jobs;
    try {
      ({ live_jobs: jobs } = await get(this.address));
    } catch (problem) {
      // Removed a moment ago: the next list will be without it.
      if (problem instanceof Refused && problem.status === 404) return;
      throw problem;
    }
    const nowMs = Date.now(), left = this.line.jobs - Math.min(JOBS_MAX, jobs.length);
    const found = jobs.slice(0, JOBS_MAX).map((job) => make("li", {},
      make("a", { href: itemAddress(job.id), class: "id", title: job.id }, `…${job.id.slice(-14)}`),
      make("span", { class: "muted" }, ` ${items(job.items)}, ${age(nowMs - job.made_ms)} old`)));
    const said = JSON.stringify(found.map((each) => each.textContent));
    if (this.jobList.dataset.said === said) return;
    this.jobList.dataset.said = said;
    arrange(this.jobList, left > 0 ? [...found, make("li", { class: "muted" }, `and ${count(left)} more`)] : found);
  }

  async run(onchange) {
    const { name, queue, target, batch } = this.line;
    const text = `Up to ${items(batch)} of ${queue} are claimed at once, and a job in ${target} is made of them.`;
    if (!(await confirmed({ title: `Run ${name} now?`, text, verb: "Run now" }))) return;
    const { id, items: claimed } = await change("POST", `${this.address}/run`);
    this.ran.hidden = true;
    if (id === null) {
      say(`There was nothing to claim in ${queue}.`);
    } else {
      this.showRun("run by hand: ", make("a", { href: itemAddress(id) }, `a job of ${items(claimed)}`));
      say(`${name} has made a job of ${items(claimed)}.`, "good");
    }
    await onchange();
  }

  async toggle(onchange) {
    const { name, queue, isEnabled, isPaused } = this.line;
    if (!isEnabled) await change("PATCH", this.address, { settings: { enabled: true } });
    else await change("POST", `${this.address}/${isPaused ? "resume" : "pause"}`);
    say(isEnabled && !isPaused ? `${name} is paused: nothing of ${queue} is claimed, its jobs go on.` : `${name} polls again.`);
    await onchange();
  }

  farewell() {
    return `${this.line.queue} is not polled any more. Jobs that are not done keep what they have claimed.`;
  }
}
