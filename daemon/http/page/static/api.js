// Asking the daemon. Every request has a deadline; what fails says by its class who must act.

import { tokenInUse, askForToken } from "./token.js";

const DEADLINE_MS = 10_000;
let slowestMs = 0;

/** How long the slowest answer took since this was asked before. */
export function takeSlowest() {
  const ms = slowestMs;
  slowestMs = 0;
  return ms;
}

/** No answer: the daemon is not there, or slow beyond patience. */
export class Away extends Error {}

/** An answer that says no, with the daemon's own words (RFC 9457). */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `answered ${status}`);
    this.status = status;
    /** Which of the settings is to blame, where it is known. */
    this.field = problem.field ?? problem.errors?.[0]?.where.split(".").at(-1);
  }
}

export async function get(path) {
  return (await send("GET", path)).json();
}

/** All pages of a list: the answer of the first one, with everything in its `member`. */
export async function getAll(path, member) {
  const answer = await get(`${path}?limit=1000`);
  let { cursor } = answer;
  while (cursor) {
    const page = await get(`${path}?${new URLSearchParams({ limit: 1000, cursor })}`);
    answer[member].push(...page[member]);
    cursor = page.cursor;
  }
  return answer;
}

/** A change. Answers with the body, or null where there is none. */
export async function change(method, path, body = null) {
  const answer = await send(method, path, body);
  return answer.status === 204 ? null : answer.json();
}

async function send(method, path, body = null) {
  for (;;) {
    const token = tokenInUse();
    const answer = await attempt(method, path, body, token);
    if (answer.ok) return answer;
    if (answer.status !== 401) throw new Refused(answer.status, await problemOf(answer));
    await askForToken(token);
  }
}

async function attempt(method, path, body, token) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  const giveUp = new AbortController();
  const deadline = setTimeout(() => giveUp.abort(), DEADLINE_MS), askedMs = Date.now();
  try {
    return await fetch(path, {
      method,
      headers,
      body: body === null ? undefined : JSON.stringify(body),
      signal: giveUp.signal,
      cache: "no-store",
    });
  } catch {
    throw new Away("the daemon does not answer");
  } finally {
    clearTimeout(deadline);
    slowestMs = Math.max(slowestMs, Date.now() - askedMs);
  }
}

async function problemOf(answer) {
  try {
    return await answer.json();
  } catch {
    return {};
  }
}
