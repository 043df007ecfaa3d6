// Figures as people read them. Pure; words.py says the same for the first view.

const whole = new Intl.NumberFormat("en-GB");
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dayAndClock = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;

export const count = (number) => whole.format(number);

export const items = (number) => `${count(number)} ${number === 1 ? "item" : "items"}`;

/** "12 min": one unit, rounded down, as one says it. */
export function age(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < SECOND) return "0 s";
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min`;
  if (ms < 2 * DAY) return `${Math.floor(ms / HOUR)} h`;
  return `${count(Math.floor(ms / DAY))} days`;
}

/** "4:07": of something that is going on. */
export function duration(ms) {
  const seconds = Math.max(0, Math.floor(ms / SECOND));
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

/** "31 ms", "1.2 s", "4:07": how long something took. */
export function took(ms) {
  if (ms < SECOND) return `${Math.max(0, Math.round(ms))} ms`;
  return ms < MINUTE ? `${(ms / SECOND).toFixed(1)} s` : duration(ms);
}

/** Binary units, as the configuration has them. */
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit && number < 10 ? number.toFixed(1) : count(Math.round(number))} ${units[unit]}`;
}

/** Items a second: small ones with a digit behind the point, since 0.4/s is not nothing. */
export function rate(perSecond) {
  const shown = perSecond > 0 && perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond));
  return `${shown}/s`;
}

export const time = (ms) => clock.format(ms);

export const dateAndTime = (ms) => dayAndClock.format(ms);

/** What an API's time is in milliseconds: it is a number already, or ISO 8601. */
export function instant(value) {
  if (value === null || value === undefined) return null;
  return typeof value === "number" ? value : Date.parse(value);
}
