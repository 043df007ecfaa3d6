"""Unique keys: which item may hold one, decided item by item. Types and pure functions.

A key of a keyed queue belongs to at most one item. It is taken in the transaction that makes the
item visible, and kept while the item waits, is being delivered, waits for a retry, or is a dead
letter. When the item is delivered, the key stays taken for the queue's `unique_window`; when the
item is deleted (a dead letter that is removed, `keys.rm`) it is free at once. An item that was set
aside because it cannot be read keeps its key until the key is dropped.

An item has *started* once a worker or consumer has leased it: items of keyed queues are leased from
the cold store on demand (actors/tiers/fetch.py), so a row that is locked is leased. An item that
has failed and waits for a retry can be replaced again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from forebay.ids import format_item_id
from forebay.keyed import KeyOutcome
from forebay.run import Run

Policy = Literal["off", "ignore", "reject", "replace"]
"""A queue's `unique`."""

Phase = Literal["waiting", "started", "dead", "done", "unreadable"]
"""The phase of an item that holds a key."""


class KeyRule(NamedTuple):
    """What a queue's settings say about keys."""

    policy: Policy = "off"
    window_ms: int = 0
    """How long a key stays taken after its item is delivered."""


KeyRules = Callable[[str], KeyRule]
"""The rule of a queue at this moment. May be called in any thread."""


def no_keys(queue: str) -> KeyRule:
    return KeyRule()


class ItemRef(NamedTuple):
    """An item, in any tier."""

    run_id: bytes
    number: int
    """Its index in that run."""

    def __str__(self) -> str:
        return format_item_id(self.run_id, self.number)


@dataclass(frozen=True, slots=True)
class Holder:
    """The item that holds a key."""

    item: ItemRef
    phase: Phase
    until_ms: int | None = None
    """For a finished item: when its key becomes free."""
    due_ms: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A run for a keyed queue that is known to be unpackable."""

    run: Run
    only_if: ItemRef | None = None
    """For a run of one item: store it in place of this item, or not at all."""


def decide(
    holder: Holder | None,
    item: ItemRef,
    policy: Policy,
    now_ms: int,
    only_if: ItemRef | None = None,
    *,
    is_same: bool = False,
) -> KeyOutcome:
    """What happens to an item whose key has this holder. `is_same`: to replace the holder by it
    would change nothing."""
    if holder is not None and holder.item == item:
        # A repeated push does not conflict with itself.
        return KeyOutcome.CREATED
    is_taken = holder is not None and not is_free(holder, now_ms)
    if only_if is not None:
        may_replace = is_taken and holder is not None and holder.item == only_if
        return _replace(holder) if may_replace else KeyOutcome.CONFLICT
    if not is_taken or policy == "off":
        return KeyOutcome.CREATED
    if policy == "ignore":
        return KeyOutcome.IGNORED
    if policy == "reject":
        return KeyOutcome.CONFLICT
    if is_same and holder is not None and holder.phase == "waiting":
        return KeyOutcome.IGNORED
    return _replace(holder)


def is_free(holder: Holder, now_ms: int) -> bool:
    """Whether the key of a finished item is free again."""
    return holder.until_ms is not None and holder.until_ms <= now_ms


def is_stored(outcome: KeyOutcome) -> bool:
    return outcome in (KeyOutcome.CREATED, KeyOutcome.UPDATED)


def window_ms(rule: KeyRule) -> int:
    """How long the key of an item that is delivered now stays taken."""
    return rule.window_ms if rule.policy != "off" else 0


def until(rule: KeyRule, now_ms: int) -> int | None:
    """Until when that is; None: it is free at once."""
    window = window_ms(rule)
    return now_ms + window if window else None


def _replace(holder: Holder | None) -> KeyOutcome:
    can_be = holder is not None and holder.phase == "waiting"
    return KeyOutcome.UPDATED if can_be else KeyOutcome.CONFLICT
