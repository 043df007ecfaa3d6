// The next ticks of the schedules in sight. The daemon is asked for more of them than are shown, and
// again when they run out or the schedule has changed: not for each schedule at each beat.

import { get, Refused } from "./api.js";

const SHOWN = 4;
const PASSED_MS = 1000;
// A period's are cheap, and soon gone.
const ASKED = 8, ASKED_OF_PERIOD = 60;

export class Ticks {
  constructor() {
    this.known = new Map();
  }

  /** Fetches what is missing for `schedules`. */
  async follow(schedules) {
    await Promise.all(schedules.filter((schedule) => this.isMissing(schedule)).map((schedule) => this.fetch(schedule)));
  }

  isMissing(schedule) {
    if (schedule.next === null) return false;
    const known = this.known.get(schedule.key);
    if (!known || known.when !== schedule.when) return true;
    return !known.isAll && this.of(schedule).length < SHOWN;
  }

  async fetch({ key, when, isPeriod }) {
    const asked = isPeriod ? ASKED_OF_PERIOD : ASKED;
    try {
      const { ticks_ms: ticks } = await get(`/api/v2/schedules/${encodeURIComponent(key)}/next?count=${asked}`);
      this.known.set(key, { when, ticks, isAll: ticks.length < asked });
    } catch (problem) {
      // Removed a moment ago: the next list will be without it.
      if (!(problem instanceof Refused && problem.status === 404)) throw problem;
    }
  }

  /**
   * Those to come: from the next one on, which the daemon names with each list by its own clock, and
   * without what has passed since, unless by this clock all has.
   */
  of({ key, when, next }) {
    const known = this.known.get(key);
    if (next === null) return [];
    const coming = known?.when === when ? known.ticks.filter((tick) => tick >= next) : [next];
    const left = coming.filter((tick) => tick > Date.now() - PASSED_MS);
    return (left.length ? left : coming.length ? coming : [next]).slice(0, SHOWN);
  }
}
