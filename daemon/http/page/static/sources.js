// What the daemon's API says, in the words of the page. Nothing else here knows the API's members.

import { get, getAll, Refused } from "./api.js";
import { prepare } from "./rows.js";
import { instant } from "./words.js";

const SERIES_MAX = 63;
const POINTS = 180;
const DEAD_EVERY_MS = 15_000, SELDOM_MS = 60_000;
const TROUBLE = { open: 0, half_open: 1, closed: 2 };
const AWAY = { cold: "overflow stays in the journal", warm: "this host works on alone" };
const NO_DEAD = { groups: [], is_complete: true };

export class Sources {
  constructor() {
    this.kept = new Map();
    this.series = new Map();
    this.problems = [];
  }

  /** What is asked for less often is asked for at once. */
  forget() {
    for (const kept of this.kept.values()) kept.atMs = -Infinity;
  }

  /**
   * Everything that the page shows. `names`: the queues whose last hour is in sight. `stores`: what
   * the stream of events has said of the stores, or null.
   */
  async look(names, stores) {
    this.problems = [];
    const [detailed, running, queues, breakers, spool, history, dead, plugins, settings] = await Promise.all([
      this.ask("/api/v2/metrics/queues/detailed"),
      this.ask("/api/v2/metrics/queues/running"),
      this.ask("/api/v2/queues", 0, null, (path) => getAll(path, "queues")),
      this.ask("/api/v2/breakers"),
      this.ask("/api/v2/spool"),
      this.askHistory(names),
      this.ask("/api/v2/dead-letters/groups", DEAD_EVERY_MS, NO_DEAD),
      this.ask("/api/v2/metrics/queues/action-plugins", SELDOM_MS, { plugins: [] }),
      this.ask("/api/v2/configuration", SELDOM_MS, { settings: {} }),
    ]);
    const pluginOf = new Map(plugins.plugins.map((plugin) => [plugin.actionClass, pluginWords(plugin)]));
    const notes = new Map(queues.queues.map((queue) => [queue.queue, noteOf(queue, breakers.breakers)]));
    const rows = rowsOf(detailed, pluginOf, notes);
    const nowMs = instant(detailed.timestamp);
    return {
      nowMs,
      rows,
      isPartial: detailed.isPartial,
      tasks: running.tasks.map(taskOf),
      queues: queuesOf(queues.queues, rows, this.series, notes, dead.groups),
      spool: spoolOf(spool, history.forecast),
      stores: storesOf(spool, stores, settings.settings),
      breakers: breakers.breakers.map(breakerOf).sort((a, b) => TROUBLE[a.state] - TROUBLE[b.state]),
      dead: { groups: dead.groups.map(groupOf), isPartial: !dead.is_complete },
      figures: figuresFrom(rows, this.series.get(""), running, dead, nowMs),
      problems: [...new Set(this.problems)],
    };
  }

  /**
   * What changes slowly, or costs the daemon more, is asked for less often. A store that is away
   * takes one answer and not the page: what was said last stands in for it, or `fallback`.
   */
  async ask(path, everyMs = 0, fallback = null, read = get) {
    const before = this.kept.get(path);
    if (before && Date.now() - before.atMs < everyMs) return before.answer;
    try {
      const answer = await read(path);
      this.kept.set(path, { answer, atMs: Date.now() });
      return answer;
    } catch (problem) {
      const standIn = before?.answer ?? fallback;
      if (!(problem instanceof Refused) || standIn === null) throw problem;
      this.problems.push(problem.message);
      return standIn;
    }
  }

  /** The daemon's hour, and those of `names`; what was seen of others before is kept. */
  async askHistory(names) {
    const parts = [];
    for (let at = 0; at === 0 || at < names.length; at += SERIES_MAX) parts.push(names.slice(at, at + SERIES_MAX));
    const answers = await Promise.all(parts.map((part) => get(
      `/api/v2/metrics/history?minutes=60&points=${POINTS}&${new URLSearchParams(["", ...part].map((name) => ["queue", name]))}`)));
    for (const series of answers.flatMap((answer) => answer.series)) this.series.set(series.queue, series);
    return answers[0];
  }
}

const pluginWords = ({ plugin, version }) => (plugin ? `provided by ${plugin} ${version ?? ""}`.trim() : "");

function rowsOf(detailed, pluginOf, notes) {
  const rows = new Map();
  for (const tier of ["warm", "cold"]) {
    for (const entry of detailed[tier]) {
      const key = JSON.stringify([entry.queue, entry.flowName, entry.actionName]);
      if (!rows.has(key)) rows.set(key, rowOf(key, entry, pluginOf, notes));
      const row = rows.get(key), oldest = instant(entry.oldestQueuedAt);
      row[tier] += entry.count;
      if (oldest !== null) row.oldest = Math.min(row.oldest ?? Infinity, oldest);
    }
  }
  return [...rows.values()].map(prepare);
}

function rowOf(key, entry, pluginOf, notes) {
  const note = notes.get(entry.queue)?.[0];
  return { key, queue: entry.queue, flow: entry.flowName, type: entry.flowType, action: entry.actionName,
    class: entry.actionClass, plugin: pluginOf.get(entry.actionClass) ?? "", warm: 0, cold: 0, oldest: null,
    note: note?.word ?? "", tone: note?.tone ?? "" };
}

function taskOf(task) {
  return { key: `${task.appName} ${task.did}`, id: task.did, queue: task.queue, action: task.actionName || task.queue,
    class: task.actionClass, items: task.count, startedMs: instant(task.startTime), runningMs: task.runningForMs,
    worker: task.appName };
}

/** What is worth a word beside a queue's name. */
function noteOf(queue, breakers) {
  const notes = [];
  if (queue.is_paused) notes.push({ word: "paused", tone: "warn" });
  else if (queue.paused_flows.length) notes.push({ word: `${queue.paused_flows.length} flows paused`, tone: "warn" });
  const breaker = breakers.find(({ destination, state }) => state !== "closed" && delivers(queue, destination));
  if (breaker) notes.push({ word: `breaker ${breaker.state.replace("_", "-")}`, tone: breaker.state === "open" ? "bad" : "warn" });
  return notes;
}

/** An http queue's destination is the origin of its url. */
function delivers(queue, destination) {
  const url = queue.settings.handler?.url;
  return Boolean(url) && URL.canParse(url) && (url === destination || new URL(url).origin === destination);
}

function queuesOf(queues, rows, series, notes, groups) {
  const waiting = sums(rows, (row) => row.queue, (row) => row.total);
  const dead = sums(groups, (group) => group.queue, (group) => group.count);
  return queues.map((queue) => {
    return { name: queue.queue, haystack: haystackOf(queue), about: aboutOf(queue),
      states: notes.get(queue.queue), isPaused: queue.is_paused, waiting: waiting.get(queue.queue) ?? 0,
      dead: dead.get(queue.queue) ?? 0, history: historyOf(series.get(queue.queue)) };
  });
}

function sums(entries, keyOf, valueOf) {
  const found = new Map();
  for (const entry of entries) found.set(keyOf(entry), (found.get(keyOf(entry)) ?? 0) + valueOf(entry));
  return found;
}

function aboutOf(queue) {
  const { handler = {}, description } = queue.settings;
  const where = handler.url ?? handler.function ?? handler.path ?? handler.command?.join(" ") ?? "";
  return [handler.type ?? "pull", where, description].filter(Boolean).join(" · ");
}

/** What a queue is found by: of a command its name, since nobody sees the rest of it. */
function haystackOf(queue) {
  const { handler = {}, description } = queue.settings;
  const where = handler.url ?? handler.function ?? handler.path ?? handler.command?.[0] ?? "";
  return [queue.queue, handler.type ?? "pull", where, description].join(" ").toLowerCase();
}

/** Rates between samples; the first has none. */
function historyOf(series) {
  if (!series) return { times: [], in: [], out: [], backlog: [], gapMs: 0 };
  const times = series.at.slice(1);
  const rates = (totals) => times.map((at, index) =>
    Math.max(0, totals[index + 1] - totals[index]) / Math.max(1e-3, (at - series.at[index]) / 1000));
  const steps = times.map((at, index) => at - series.at[index]).sort((a, b) => a - b);
  const usual = steps[Math.floor(steps.length / 2)] ?? 0;
  return { times, in: rates(series.accepted), out: rates(series.delivered), gapMs: 3 * usual,
    backlog: times.map((_, at) => waitingAt(series, at + 1)) };
}

const waitingAt = (series, at) => series.spooled[at] + series.scheduled[at] + series.warm[at] + series.cold[at];

function spoolOf(spool, forecast) {
  return { usedBytes: spool.bytes, maxBytes: spool.max_bytes, runs: spool.runs, freeBytes: spool.free_bytes,
    quarantineBytes: spool.quarantine_bytes, estimate: { kind: forecast.direction, seconds: forecast.seconds } };
}

function storesOf(spool, stores, settings) {
  const disk = spool.disk_is_low
    ? { name: "disk", word: "low", tone: "bad", note: "pushes are refused, what is stored drains" }
    : { name: "disk", word: "up", tone: "good", note: `durability ${spool.durability}` };
  const tiers = ["warm", "cold"].map((name) => {
    const state = stores?.[name] ?? "unknown";
    const tone = { up: "good", unknown: "plain" }[state] ?? "bad";
    const note = state === "away" ? AWAY[name] : settings[name]?.type ?? "";
    return { name, word: state, tone, note };
  });
  return [disk, ...tiers];
}

function breakerOf(breaker) {
  const retry = breaker.open_until_ms;
  return { destination: breaker.destination, state: breaker.state, failures: breaker.failures,
    isForced: breaker.forced, untilMs: retry ?? null, lastError: breaker.last_error };
}

function groupOf(group) {
  return { key: JSON.stringify([group.queue, group.error]), queue: group.queue, error: group.example || group.error,
    haystack: `${group.queue} ${group.example || group.error}`.toLowerCase(),
    shape: group.error, count: group.count, example: group.example_id, lastMs: group.last_ms };
}

function figuresFrom(rows, whole, running, dead, nowMs) {
  const last = (name) => whole?.[name].at(-1) ?? 0;
  const total = (name) => rows.reduce((sum, row) => sum + row[name], 0);
  const oldest = rows.reduce((least, row) => (row.oldest === null ? least : Math.min(least, row.oldest)), Infinity);
  const warm = total("warm"), cold = total("cold"), other = last("spooled") + last("scheduled");
  return { waiting: warm + cold + other, warm, cold, other,
    running: running.tasks.reduce((sum, task) => sum + task.count, 0),
    rates: whole ? { in: whole.rates.accepted, out: whole.rates.delivered } : null,
    oldestMs: Number.isFinite(oldest) ? nowMs - oldest : null, dead: dead.is_complete ? dead.groups.reduce((sum, group) => sum + group.count, 0) : last("dead") };
}
