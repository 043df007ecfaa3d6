"""Unique keys as the steps of the cold store see them: who has one, and where that item is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from actors.keys.arbiter import Known
from actors.model.keys import ItemRef, KeyRule, Phase
from daemon.stores.cold.books import Place
from daemon.stores.cold.rows import CORRUPT, FAILED, QUEUED
from forebay.run import Run

FORGOTTEN_MAX: Final = 2000
"""How many keys, and runs, one step forgets: others wait for it."""


class KeyedRow(NamedTuple):
    """The row of `runs` that an item is in."""

    n: int
    bits: int
    place: Place
    write: bytes | None
    phase: Phase
    due_ms: int
    attempt: int
    size: int
    """Of its body."""


class KeyedItem(NamedTuple):
    """The entry of a key: where the item is that has it."""

    key: bytes
    body_id: bytes
    place: int
    entry: int = 0
    """The number of the entry, where entries have numbers."""
    row: KeyedRow | None = None
    """If rows were asked for, and the item is not done."""


Held = Known[KeyedItem]


class Released(NamedTuple):
    """Items of a body that have ended."""

    body_id: bytes
    bits: int
    window_ms: int | None = None
    """How long their keys stay taken. None: they are free at once."""


class Taking(NamedTuple):
    """Keys that items of a run get."""

    run: Run
    keys: Mapping[bytes, int]
    """Each key, and the number of its item in the run."""
    body_id: bytes
    """The body that the items are in."""
    places: Mapping[int, int]
    """Where in the body each item is that is not at its own number."""


class Moved(NamedTuple):
    """An item that has come from another body."""

    queue: str
    key: bytes
    item: ItemRef
    body_id: bytes
    place: int


class Answer(NamedTuple):
    """What was answered to a run that was offered."""

    run_id: bytes
    outcomes: bytes
    """One byte per item, or one for all of them."""
    fingerprint: int


def window_of(rule: KeyRule) -> int | None:
    """How long the key of a delivered item stays taken."""
    return rule.window_ms if rule.policy != "off" and rule.window_ms else None


def phase_of(state: str, *, is_locked: bool) -> Phase:
    if state == FAILED:
        return "dead"
    if state == CORRUPT:
        return "unreadable"
    # Claimed, leased, or of a lease that ran out: its former holder may still report the outcome.
    return "waiting" if state == QUEUED and not is_locked else "started"


def placed(held: Held, rows: Sequence[KeyedRow]) -> Held:
    """With the row among these that the item is in."""
    if held.holder.until_ms is not None:
        return held
    for row in rows:
        if row.bits >> held.where.place & 1:
            holder = replace(held.holder, phase=row.phase, due_ms=row.due_ms, attempt=row.attempt)
            return Known(holder, held.where._replace(row=row))
    return Known(replace(held.holder, phase="unreadable"), held.where)
