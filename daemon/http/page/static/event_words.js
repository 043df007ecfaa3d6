// Events of the daemon in words: what kind, what happened, and how bad it is. Pure: no document.

import { count, items } from "./words.js";

/** What each kind is called, in the order in which they are offered. */
export const KINDS = { breaker: "Breakers", store: "Stores", trigger: "Triggers", notice: "Notices", queue: "Queues",
  daemon: "The daemon", lost: "Lost events" };

const BREAKERS = { open: ["is open", "bad"], half_open: ["is tried", "warn"], closed: ["is closed", "good"] };
const DAEMON = { started: ["has started", "good"], draining: ["drains", "warn"], stopped: ["has stopped", "warn"] };
const NOTICES = { dead: ["tells of", "warn"], trigger_failed: ["tells of a trigger that fails", "warn"], not_sent: ["could not tell of", "bad"] };

/** { about, text, tone, queue, trigger }: about whom, and what; the last two where there is one to go to. */
export function told(event) {
  const { kind, state, destination, queue = null, error } = event;
  switch (kind) {
    case "breaker": {
      const [text, tone] = BREAKERS[state] ?? [`is ${state}`, "plain"];
      const after = state === "open" && event.count ? ` after ${failures(event.count)}` : "";
      return { about: destination, text: because(`${text}${after}`, error), tone };
    }
    case "store":
      return { about: destination, text: state === "away" ? "does not answer" : "is back", tone: state === "away" ? "bad" : "good" };
    case "daemon": {
      const [text, tone] = DAEMON[state] ?? [state, "plain"];
      return { about: "forebay", text, tone };
    }
    case "queue":
      return { about: queue, text: `is delivered to ${destination} by ${workers(event.workers)}`, tone: "plain", queue };
    case "notice": {
      const [text, tone] = NOTICES[state] ?? [state, "plain"];
      const what = queue === null ? "" : ` ${items(event.count)} of ${queue}`;
      return { about: destination, text: because(`${text}${what}`, error), tone, queue };
    }
    case "trigger":
      return { about: destination, text: because("has failed", error), tone: "bad", queue, trigger: destination };
    case "lost":
      return { about: "event log", text: `${count(event.count)} events were not written`, tone: "warn" };
    default:
      return { about: destination ?? queue ?? kind, text: because(state ?? "", error), tone: "plain", queue };
  }
}

const because = (text, error) => (error ? `${text}: ${error}` : text);
const failures = (number) => `${count(number)} ${number === 1 ? "failure" : "failures"}`;
const workers = (number) => `${count(number)} ${number === 1 ? "worker" : "workers"}`;
