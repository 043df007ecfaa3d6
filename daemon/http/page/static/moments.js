// Moments on the clock of a time zone, as short as they can be said. Pure.

import { age } from "./words.js";

const WEEK_MS = 6 * 86_400_000;
const SOON_MS = 1000;
const formats = new Map();

/**
 * "02:30", "Tue 02:30", "1 Dec 02:30", "1 Jan 2027 02:30": no more than is needed to know each. Where
 * one has seconds, all have.
 */
export function moments(times, zone, nowMs) {
  const now = parts(nowMs, zone), all = times.map((ms) => ({ ms, ...parts(ms, zone) }));
  const hasSeconds = all.some(({ second }) => second !== "00");
  return all.map((at) => {
    const clock = hasSeconds ? `${at.hour}:${at.minute}:${at.second}` : `${at.hour}:${at.minute}`;
    return [dayOf(at, now, nowMs), clock].filter(Boolean).join(" ");
  });
}

function dayOf(at, now, nowMs) {
  if (at.year !== now.year) return `${at.day} ${at.month} ${at.year}`;
  if (at.month === now.month && at.day === now.day) return "";
  return at.ms > nowMs && at.ms - nowMs < WEEK_MS ? at.weekday : `${at.day} ${at.month}`;
}

/** "in 9 h". */
export function until(ms, nowMs) {
  return ms - nowMs < SOON_MS ? "now" : `in ${age(ms - nowMs)}`;
}

function parts(ms, zone) {
  return Object.fromEntries(formatOf(zone).formatToParts(ms).map(({ type, value }) => [type, value]));
}

/** A browser may know fewer zones than the daemon: those are shown as UTC. */
export function knownZone(zone) {
  try {
    formatOf(zone);
    return zone;
  } catch {
    return "UTC";
  }
}

function formatOf(zone) {
  if (!formats.has(zone)) {
    formats.set(zone, new Intl.DateTimeFormat("en-GB", { timeZone: zone, year: "numeric", month: "short",
      day: "numeric", weekday: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }));
  }
  return formats.get(zone);
}
