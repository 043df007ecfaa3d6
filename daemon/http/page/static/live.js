// The daemon's stream of events: a breaker that opens shows at once, not at the next beat.
//
// Read with fetch, because an EventSource can send no token. Open while the page can be seen; where
// it ends or is refused, the page goes on by its beat, and tries again a while later.

import { tokenInUse } from "./token.js";

const AGAIN_MS = 15_000;

export class Live {
  /** `onchange` is called when something has changed; many changes at once are one. */
  constructor(onchange) {
    this.onchange = onchange;
    this.reading = null;
    this.latest = null;
    this.stores = null;
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.open()));
    addEventListener("pagehide", () => this.stop());
    this.open();
  }

  stop() {
    clearTimeout(this.timer);
    this.reading?.abort();
    this.reading = null;
    this.stores = null;
  }

  async open() {
    this.stop();
    if (document.hidden) return;
    const reading = new AbortController();
    this.reading = reading;
    try {
      await this.read(reading.signal);
    } catch {
      // Away, or aborted by us: both are somebody else's to say.
    }
    if (this.reading === reading) this.timer = setTimeout(() => this.open(), AGAIN_MS);
  }

  async read(signal) {
    const token = tokenInUse();
    const headers = { Accept: "text/event-stream" };
    if (token) headers.Authorization = `Bearer ${token}`;
    if (this.latest !== null) headers["Last-Event-ID"] = this.latest;
    const answer = await fetch("/api/v2/events", { headers, signal, cache: "no-store" });
    if (!answer.ok || !answer.body) return;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (text + value).split("\n\n");
      text = events.pop();
      this.take(events.map(parsed));
    }
  }

  take(events) {
    const numbered = events.filter((event) => event.id !== undefined);
    if (numbered.length) this.latest = numbered.at(-1).id;
    const sample = events.findLast((event) => event.event === "sample");
    if (sample) this.showStores(JSON.parse(sample.data).stores);
    if (events.some((event) => event.event === "change" || event.event === "missed")) this.onchange();
  }

  /** What a sample says of the stores; news of them is a change. */
  showStores(stores) {
    const isNews = JSON.stringify(stores) !== JSON.stringify(this.stores);
    this.stores = stores;
    if (isNews) this.onchange();
  }
}

/** The lines of one event as members; a comment has none. */
export function parsed(event) {
  const lines = event.split("\n").filter((line) => line && !line.startsWith(":"));
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf(":");
    return [line.slice(0, at), line.slice(at + 1).trimStart()];
  }));
}
