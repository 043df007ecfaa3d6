// When the page asks: at once, then every 5 s after the last answer, never while the tab is hidden;
// and what it says about the age of what it shows.

import { Away, Refused } from "./api.js";
import { byId, setText } from "./elements.js";
import { age, time } from "./words.js";

export const EVERY_MS = 5000;
const TICK_MS = 1000;
const SOON_MS = 250;

export class Beat {
  /** `refresh` asks for everything; `tick` is called every second that the page can be seen. */
  constructor(refresh, tick) {
    this.refresh = refresh;
    this.tick = tick;
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
    else if (!document.hidden) this.timer = setTimeout(() => this.now(), EVERY_MS);
  }

  /** Asks in a moment, once, however often this is called. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), SOON_MS);
  }

  async attempt() {
    try {
      await this.refresh();
      this.answeredMs = Date.now();
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
      setText(byId("notice-text"), `${what} ${last} Asking again every 5 s.`);
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
    const isLive = !document.body.classList.contains("away") && ms < 2 * EVERY_MS;
    setText(byId("freshness"), document.hidden ? "paused" : isLive ? "live" : `${age(ms)} old`);
  }
}
