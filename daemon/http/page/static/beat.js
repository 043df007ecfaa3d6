// When the page asks: at once, then every 5 s after the last answer, never while the tab is hidden;
// and what it says about the age of what it shows. A view that may be costly to answer asks less often
// then: a thousand schedules take the daemon a third of a second, which is too much every 5 s.

import { Away, Refused, takeSlowest } from "./api.js";
import { byId, setText } from "./elements.js";
import { age, time } from "./words.js";

export const EVERY_MS = 5000;
const TICK_MS = 1000;
const SOON_MS = 250;
const PATIENT_MS_MAX = 30_000;

export class Beat {
  /**
   * `refresh` asks for everything; `tick` is called every second that the page can be seen. One that
   * is patient waits 20 times as long as the slowest answer took, 30 s at most.
   */
  constructor(refresh, tick, { isPatient = false } = {}) {
    this.refresh = refresh;
    this.tick = tick;
    this.isPatient = isPatient;
    this.everyMs = EVERY_MS;
    this.answeredMs = null;
    this.remarks = [];
    this.timer = null;
    this.isAsking = false;
    this.wantsMore = false;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.now()));
    addEventListener("online", () => this.now());
    setInterval(() => this.everySecond(), TICK_MS);
    this.now();
  }

  pause() {
    clearTimeout(this.timer);
    this.showAge();
  }

  /** Asks now; if it is asking already, once more behind that. */
  async now() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    if (this.isAsking) {
      this.wantsMore = true;
      return;
    }
    this.isAsking = true;
    this.wantsMore = false;
    // For whoever drives the page: whether what it shows is about to change.
    document.body.dataset.asking = "";
    const problem = await this.attempt();
    this.isAsking = false;
    this.report(problem);
    delete document.body.dataset.asking;
    if (this.wantsMore) this.now();
    else if (!document.hidden) this.timer = setTimeout(() => this.now(), this.everyMs);
  }

  /** Asks in a moment, once, however often this is called. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), SOON_MS);
  }

  async attempt() {
    takeSlowest();
    try {
      await this.refresh();
      this.answeredMs = Date.now();
      if (this.isPatient) this.everyMs = Math.min(PATIENT_MS_MAX, Math.max(EVERY_MS, 20 * takeSlowest()));
      return null;
    } catch (problem) {
      if (problem instanceof Away || problem instanceof Refused) return problem;
      throw problem;
    }
  }

  report(problem) {
    const notice = byId("notice");
    document.body.classList.toggle("away", problem !== null);
    if (problem === null) {
      notice.hidden = !this.remarks.length;
      setText(byId("notice-text"), `Part of this is not of now, because the daemon says: ${this.remarks.join("; ")}.`);
    } else {
      const last = this.answeredMs === null ? "Nothing was heard from it yet."
        : `What stands here is of ${time(this.answeredMs)}.`;
      const what = problem instanceof Away ? "The daemon does not answer." : `The daemon says: ${problem.message}.`;
      setText(byId("notice-text"), `${what} ${last} Asking again every ${age(this.everyMs)}.`);
      notice.hidden = false;
    }
    this.showAge();
  }

  everySecond() {
    if (document.hidden) return;
    this.showAge();
    this.tick();
  }

  showAge() {
    if (this.answeredMs === null) return;
    const ms = Date.now() - this.answeredMs;
    const isLive = !document.body.classList.contains("away") && ms < 2 * this.everyMs;
    setText(byId("freshness"), document.hidden ? "paused" : isLive ? "live" : `${age(ms)} old`);
  }
}
