// What fields of a form offer to choose from: offered, not demanded.

import { Away, Refused, getAll } from "./api.js";
import { byId, make } from "./elements.js";

/** The queues there are, in the list `queue-names`. */
export async function offerQueues() {
  try {
    const { queues } = await getAll("/api/v2/queues", "queues");
    byId("queue-names").replaceChildren(...queues.map(({ queue }) => make("option", { value: queue })));
  } catch (problem) {
    // A name can be written without them; whether the daemon is there is told by the page.
    if (!(problem instanceof Away || problem instanceof Refused)) throw problem;
  }
}

/** The zones that the browser knows, in the list `zone-names`. */
export function offerZones() {
  const zones = byId("zone-names");
  if (zones.children.length) return;
  zones.append(...["UTC", ...Intl.supportedValuesOf("timeZone")].map((value) => make("option", { value })));
}
