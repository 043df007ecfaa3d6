// The events view: what has changed lately, the latest first, of all kinds or of one. The daemon keeps
// the last thousand of its life; a change is shown as it happens.

import { get } from "./api.js";
import { bindAppearance } from "./appearance.js";
import { Beat } from "./beat.js";
import { arrange, byId, chip, make, setText } from "./elements.js";
import { KINDS, told } from "./event_words.js";
import { linked } from "./item_parts.js";
import { cell, Lines } from "./lines.js";
import { Live } from "./live.js";
import { bindTokenDialog } from "./token.js";
import { age, count, dateAndTime } from "./words.js";

const KEPT = 1000;
let known = [], latest = 0;

/** An event of the API as the page has it. */
function lineOf(event) {
  const said = told(event), kind = KINDS[event.kind] ?? event.kind;
  return { key: event.number, number: event.number, at: event.at_ms, kind: event.kind, word: kind, ...said,
    haystack: [kind, event.kind, said.about, said.text, said.queue].join(" ").toLowerCase() };
}

/** An event does not change: its line is made once. */
class EventEntry {
  constructor(number) {
    this.ago = make("span", { class: "muted about" });
    this.element = make("tr", { role: "row", "data-key": number });
  }

  show(line) {
    this.line ??= this.make(line);
    this.tick();
  }

  make(line) {
    this.element.append(
      cell("number", "When", make("time", {}, dateAndTime(line.at)), this.ago), cell("kind", "Kind", chip(line.word, line.tone)),
      cell("about", "About", placeOf(line)), cell("text", "What", ...linked(line.text)));
    return line;
  }

  tick() {
    setText(this.ago, `${age(Math.max(0, Date.now() - this.line.at))} ago`);
  }
}

function placeOf({ about, queue, trigger }) {
  const [view, name] = trigger ? ["/triggers", trigger] : ["", queue];
  return name && name === about ? make("a", { href: `/queue-metrics${view}?filter=${encodeURIComponent(name)}` }, about) : about;
}

const chosen = byId("events-kind");
const lines = new Lines("events", {
  newEntry: (number) => new EventEntry(number),
  words: { empty: "Nothing has happened yet." },
  order: ["number", "descending"],
});

async function refresh() {
  const asked = latest, last = known.at(-1);
  // With the latest that is known, by which another life of the daemon is told from the same one.
  const { events, latest: now } = await get(`/api/v2/events/recent?limit=${KEPT}&after=${Math.max(0, asked - 1)}`);
  const again = events.find(({ number }) => number === asked);
  // Another life counts from one again.
  if (now < asked || (again && last && again.at_ms !== last.at)) {
    known = [];
    latest = 0;
    // Its events have the numbers of others: their lines are made anew.
    lines.show([]);
    return refresh();
  }
  latest = now;
  known = [...known, ...events.filter(({ number }) => number > asked).map(lineOf)].slice(-KEPT);
  show();
}

function show() {
  offerKinds();
  lines.show(known.filter(({ kind }) => !chosen.value || kind === chosen.value));
}

/** The kinds that there are, and how many of each. */
function offerKinds() {
  const counts = new Map(Object.keys(KINDS).map((kind) => [kind, 0]));
  for (const { kind } of known) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const said = JSON.stringify([...counts]);
  if (chosen.dataset.said === said) return;
  chosen.dataset.said = said;
  const { value } = chosen;
  const options = [...counts].filter(([kind, number]) => number || kind === value).map(([kind, number]) =>
    make("option", { value: kind }, `${KINDS[kind] ?? kind} (${count(number)})`));
  arrange(chosen, [make("option", { value: "" }, `All kinds (${count(known.length)})`), ...options]);
  chosen.value = value;
}

const beat = new Beat(refresh, () => lines.tick(), { isPatient: true });
const live = new Live(() => beat.now());
bindAppearance(byId("appearance"));
bindTokenDialog();
chosen.addEventListener("change", () => {
  const address = new URL(location.href);
  if (chosen.value) address.searchParams.set("kind", chosen.value);
  else address.searchParams.delete("kind");
  history.replaceState(null, "", address);
  show();
});
const wanted = new URLSearchParams(location.search).get("kind");
if (wanted) {
  chosen.append(make("option", { value: wanted }, wanted));
  chosen.value = wanted;
}
beat.start();
live.start();
