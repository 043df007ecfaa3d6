"""What a daemon of the torture says about the items in its hands: a line for each fact, as it is.

    leased     at, ids, lock        a worker has them; `at` is before the lease was asked for
    recorded   at, ids              their owner knows that they are delivered; `at` is after that
    locked     at, lock             this daemon has taken rows of the cold store under this lock

So the time between the first two is never shorter than what was so. A line is in the file before
anything else happens to the items: a daemon that is killed has said all that it knew, but for what
it recorded in its very last moment, when a fault had befallen it anyway. Facts are taken where the
owners themselves learn of them (the journal's marks are written, the cold store has committed);
nothing is read from their books.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import actors.spooler.lending
import actors.tiers.leasing
import daemon.stores.postgres.store
from actors.model.runs import Fate
from actors.model.slices import InCold, Slice, indexes
from actors.ports.tiers import ColdRow, Leased, RowOutcome
from forebay.ids import format_item_id
from forebay.run import Run

PATH: Final = "FLEET_WITNESS"
"""The file, in the environment."""


class Held(NamedTuple):
    """An item in a worker's hands."""

    began: float
    host: str
    lock: str
    """Of the row of the cold store that it is in; empty: it is of a journal."""


class Said(NamedTuple):
    """What all daemons have said, by item."""

    held: dict[str, list[Held]]
    recorded: dict[str, list[float]]
    holders: dict[str, str]
    """Which host has, or had, the rows under a lock."""


def install() -> None:
    """This process tells from now on."""
    ids_of_rows: dict[bytes, list[str]] = {}
    lease, written = actors.tiers.leasing.Leasing.lease, actors.spooler.lending.Loans.written
    store = daemon.stores.postgres.store.PostgresCold
    acquire, settle = store.acquire, store.settle

    async def lease_and_tell(self: Any, *wanted: Any) -> list[Leased]:
        at = time.time()
        found = await lease(self, *wanted)
        for one in found:
            owner, ids = one.slice.run.owner, ids_of(one.slice)
            lock = ""
            if isinstance(owner, InCold):
                lock, ids_of_rows[owner.row] = owner.lock.hex(), all_ids(one.slice)
            tell({"is": "leased", "at": at, "ids": ids, "lock": lock})
        return found

    def written_and_tell(self: Any, marks: list[actors.spooler.lending.PendingMark]) -> None:
        written(self, marks)
        ids = [
            format_item_id(mark.run_id, index)
            for mark in (pending.mark for pending in marks)
            if mark.fate is Fate.DELIVERED and mark.run_id is not None
            for index in range(mark.first, mark.last)
        ]
        if ids:
            tell({"is": "recorded", "at": time.time(), "ids": ids})

    async def acquire_and_tell(
        self: Any, queue: str, lock: bytes, *more: Any, cuts: bool = False
    ) -> list[ColdRow]:
        tell({"is": "locked", "at": time.time(), "lock": lock.hex()})
        return await acquire(self, queue, lock, *more, cuts=cuts)

    async def settle_and_tell(self: Any, outcomes: Sequence[RowOutcome]) -> list[bool]:
        answers = await settle(self, outcomes)
        ids = [
            ids_of_rows[outcome.row][index]
            for outcome, is_taken in zip(outcomes, answers, strict=True)
            if is_taken and outcome.row in ids_of_rows
            for index in indexes(outcome.delivered)
        ]
        if ids:
            tell({"is": "recorded", "at": time.time(), "ids": ids})
        return answers

    for owner, name, told in (
        (actors.tiers.leasing.Leasing, "lease", lease_and_tell),
        (actors.spooler.lending.Loans, "written", written_and_tell),
        (store, "acquire", acquire_and_tell),
        (store, "settle", settle_and_tell),
    ):
        setattr(owner, name, told)


def all_ids(slice_: Slice) -> list[str]:
    return list(Run(slice_.run.head, slice_.run.data).item_ids())


def ids_of(slice_: Slice) -> list[str]:
    ids = all_ids(slice_)
    return [ids[index] for index in indexes(slice_.bits)]


def tell(fact: dict[str, Any]) -> None:
    where = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(where, json.dumps(fact).encode() + b"\n")
    finally:
        os.close(where)


def hear(witnesses: Iterable[tuple[str, Path]]) -> Said:
    """Of each host, by its name, the file."""
    heard = Said({}, {}, {})
    for host, path in witnesses:
        for fact in _facts(path):
            match fact["is"]:
                case "leased":
                    held = Held(fact["at"], host, fact["lock"])
                    for item in fact["ids"]:
                        heard.held.setdefault(item, []).append(held)
                case "recorded":
                    for item in fact["ids"]:
                        heard.recorded.setdefault(item, []).append(fact["at"])
                case "locked":
                    heard.holders[fact["lock"]] = host
    return heard


def _facts(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        if line.endswith(b"}\n"):
            yield json.loads(line)
