// Retrying and deleting the dead letters of one group, and of no other: the letters are read, those
// whose error has the group's shape are chosen by their ids, and the daemon does it as jobs.

import { change, get, Refused } from "./api.js";

const LETTERS = "/api/v2/dead-letters";
const AT_ONCE = 1000;
const POLL_MS = 400;
const SHAPE_MAX = 200;
const OVER = new Set(["done", "cancelled", "failed"]);

// As actors/control/dead_groups.py has it; tests/browser/test_actions.py asks both.
const VARIES = new RegExp([
  "(^[1-5]\\d\\d\\b(?![.\\d])"
    + "|\\b(?:http(?:/[\\d.]+)?|status|code|errno|exit|exited with)[ :=]{1,2}\\d{1,3}\\b(?![.\\d]))",
  "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?:-\\d+)?",
  "0x[0-9a-f]+", "\\b[0-9a-f]{16,}\\b", "\\d+(?:\\.\\d+)*", "'[^']{0,200}'", '"[^"]{0,200}"',
].join("|"), "gi");

/** An error without what differs from item to item. */
export function shapeOf(text) {
  const shape = text.split(/\s+/).filter(Boolean).join(" ").replace(VARIES, (_, code) => code ?? "…");
  return [...shape].slice(0, SHAPE_MAX).join("");
}

export const retry = (group, onprogress) => act("retry", group, onprogress);
export const remove = (group, onprogress) => act("delete", group, onprogress);

/** How many it was done to. */
async function act(verb, group, onprogress) {
  let done = 0;
  for await (const ids of chosen(group)) {
    const job = await change("POST", `${LETTERS}/${verb}`, { ids });
    done += await followed(job, (now) => onprogress(done + now, group.count));
  }
  return done;
}

/**
 * The ids of a group's letters, in portions; without those that died since the group was shown, as
 * letters that fail again at once do: they would be tried for ever.
 */
async function* chosen(group) {
  let cursor = null;
  do {
    const query = new URLSearchParams({ queue: group.queue, limit: AT_ONCE, died_before_ms: group.lastMs + 1 });
    if (cursor) query.set("cursor", cursor);
    const page = await get(`${LETTERS}?${query}`);
    const ids = page.letters.filter((letter) => shapeOf(letter.errors.at(-1)?.text ?? "") === group.shape)
      .map((letter) => letter.id);
    if (ids.length) yield ids;
    cursor = page.cursor;
  } while (cursor);
}

async function followed(job, onprogress) {
  while (!OVER.has(job.state)) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    job = await get(`/api/v2/jobs/${job.id}`);
    onprogress(job.done);
  }
  if (job.state !== "done") throw new Refused(503, { detail: job.error ?? `the job was ${job.state}` });
  return job.done;
}
