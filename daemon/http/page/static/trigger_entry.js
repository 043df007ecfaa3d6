// A line of the triggers view: what it polls, what it makes of it, the jobs that are not done; run
// now, pause, resume, delete.

import { change, get, Refused } from "./api.js";
import { confirmed, say } from "./dialogs.js";
import { arrange, chip, make, setAttribute, setText } from "./elements.js";
import { linked } from "./item_parts.js";
import { button, cell } from "./lines.js";
import { itemAddress } from "./running.js";
import { age, count, items } from "./words.js";

const JOBS_MAX = 20;

/** A trigger of the API as the page has it. */
export function lineOf(trigger) {
  const { name, queue, target, settings } = trigger;
  return {
    key: name, name, queue, target, when: trigger.when, jobs: trigger.jobs,
    haystack: [name, queue, target, settings.description].join(" ").toLowerCase(),
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

export class TriggerEntry {
  constructor(name, onchange) {
    this.about = make("span", { class: "muted about" });
    this.filed = make("span", { class: "muted about" }, "set in the configuration file");
    this.problem = make("span", { class: "trouble" });
    this.ran = make("span", { class: "about", hidden: true });
    this.queue = make("a");
    this.when = make("span", { class: "muted about" });
    this.batch = cell("batch", "Claims");
    this.target = make("a");
    this.jobCount = make("summary");
    this.jobList = make("ul");
    this.jobs = make("details", { ontoggle: () => this.jobs.open && onchange() }, this.jobCount, this.jobList);
    this.noJobs = make("span", { class: "muted" }, "none");
    this.state = cell("state", "State");
    this.runButton = button("Run now", () => this.run(onchange));
    this.switch = button("", () => this.toggle(onchange));
    this.deleteButton = button("Delete", () => this.remove(onchange), "quiet danger");
    this.element = make("tr", { role: "row", "data-key": name },
      cell("name", "Name", make("strong", {}, name), this.about, this.filed, this.problem, this.ran),
      cell("queue", "Polls", this.queue, this.when), this.batch, cell("target", "Jobs go to", this.target),
      cell("jobs", "Jobs not done", this.noJobs, this.jobs), this.state,
      cell("actions", "", make("div", { class: "actions" }, this.runButton, this.switch, this.deleteButton)));
    this.runButton.setAttribute("aria-label", `Run ${name} now`);
    this.deleteButton.setAttribute("aria-label", `Delete ${name}`);
  }

  show(line) {
    this.line = line;
    setText(this.about, line.about);
    this.filed.hidden = !line.isFiled;
    if (this.problem.textContent !== line.problem) this.problem.replaceChildren(...linked(line.problem));
    showQueue(this.queue, line.queue);
    setText(this.when, line.when);
    setText(this.batch, `up to ${items(line.batch)} a job`);
    showQueue(this.target, line.target);
    this.noJobs.hidden = line.jobs > 0;
    this.jobs.hidden = !line.jobs;
    setText(this.jobCount, count(line.jobs));
    const [word, tone] = stateOf(line);
    if (this.state.textContent !== word) this.state.replaceChildren(chip(word, tone));
    this.showButtons(line);
  }

  /** What the file defines can be paused here; what is disabled there can't be enabled. */
  showButtons({ name, isFiled, isEnabled, isPaused }) {
    const verb = !isEnabled ? "Enable" : isPaused ? "Resume" : "Pause";
    setText(this.switch, verb);
    setAttribute(this.switch, "aria-label", `${verb} ${name}`);
    this.switch.hidden = isFiled && !isEnabled;
    this.runButton.hidden = !isEnabled;
    this.deleteButton.hidden = isFiled;
  }

  /** The jobs that are not done, where somebody has opened them. */
  async follow() {
    if (!this.jobs.open || !this.line.jobs) return;
    let jobs;
    try {
      ({ live_jobs: jobs } = await get(address(this.line.name)));
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
    const { id, items: claimed } = await change("POST", `${address(name)}/run`);
    this.ran.hidden = id === null;
    if (id === null) {
      say(`There was nothing to claim in ${queue}.`);
    } else {
      this.ran.replaceChildren("run by hand: ", make("a", { href: itemAddress(id) }, `a job of ${items(claimed)}`));
      say(`${name} has made a job of ${items(claimed)}.`, "good");
    }
    await onchange();
  }

  async toggle(onchange) {
    const { name, queue, isEnabled, isPaused } = this.line;
    if (!isEnabled) await change("PATCH", address(name), { settings: { enabled: true } });
    else await change("POST", `${address(name)}/${isPaused ? "resume" : "pause"}`);
    say(isEnabled && !isPaused ? `${name} is paused: nothing of ${queue} is claimed, its jobs go on.` : `${name} polls again.`);
    await onchange();
  }

  async remove(onchange) {
    const { name, queue } = this.line;
    const text = `${queue} is not polled any more. Jobs that are not done keep what they have claimed.`;
    if (!(await confirmed({ title: `Delete the trigger ${name}?`, text, verb: "Delete", isDangerous: true }))) return;
    await change("DELETE", address(name));
    say(`${name} is deleted.`);
    await onchange();
  }
}

const address = (name) => `/api/v2/triggers/${encodeURIComponent(name)}`;

function showQueue(link, queue) {
  setText(link, queue);
  setAttribute(link, "href", `/queue-metrics?filter=${encodeURIComponent(queue)}`);
}
