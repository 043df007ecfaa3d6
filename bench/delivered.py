"""Whether a file that the daemon delivered to has everything, and what it has twice."""

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivered:
    lines: int
    items: int
    """Lines with different item ids."""
    duplicates: int
    """Lines whose item id came before: delivered again after the crash."""
    missing: int
    """Events that were pushed and are not there."""
    strangers: int
    """Events that nobody pushed."""
    twins: int
    """Events that came with more than one item id: stored twice, which must not be."""
    torn: int
    """Lines that the crash cut short; their items came again."""

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.strangers or self.twins)


def check_delivered(lines: Iterable[bytes], pushed: set[str]) -> Delivered:
    """`pushed` are the event ids of the payloads that were acknowledged."""
    event_of: dict[str, str] = {}
    count = torn = 0
    for line in lines:
        count += 1
        try:
            item = json.loads(line)
        except ValueError:
            torn += 1
            continue
        event_of[item["id"]] = event_id(item["payload"])
    events = set(event_of.values())
    return Delivered(
        lines=count,
        items=len(event_of),
        duplicates=count - torn - len(event_of),
        missing=len(pushed - events),
        strangers=len(events - pushed),
        twins=len(event_of) - len(events),
        torn=torn,
    )


def event_id(payload: str | bytes) -> str:
    return str(json.loads(payload)["event_id"])
