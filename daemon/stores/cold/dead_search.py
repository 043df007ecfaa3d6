"""Searching dead letters, in the order in which they died, a bounded stretch at a time.

A stretch is walked in an index: of a queue, of all letters, or of item ids. Flow, action and the
last error are compared on the way, inside the database. Where something is compared, the end of
the stretch is looked up first, so that letters that die meanwhile are neither skipped nor seen
twice.
"""

from functools import cache
from typing import Any, Final, NamedTuple

from actors.ports.tiers import DeadFilter
from daemon.stores.cold.books import Place
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.rows import fold
from daemon.stores.cold.statement import Statement

SCANNED_MAX: Final = 5000


class After(NamedTuple):
    """The place in the order where a search goes on."""

    died_at: int
    row: bytes


class Found(NamedTuple):
    n: int
    id: bytes
    body_id: bytes
    size: int
    died_at: int
    place: Place
    write: bytes | None


class Stretch(NamedTuple):
    rows: list[Found]
    after: After | None
    """None: there is nothing more to be found."""


async def search(
    con: Connection, which: DeadFilter, limit: int, after: After | None, until: int
) -> Stretch:
    """Up to `limit` letters that match and died at `until` or before."""
    if limit < 1:
        raise ValueError(f"a search for {limit} dead letters")
    limit = min(limit, SCANNED_MAX)
    terms = walked(which, after, until)
    end: After | None = None
    if compared := matching(which):
        last = await con.first(*stated(END, terms, SCANNED_MAX - 1))
        if last is not None:
            end = After(*last)
            compared.append(("(died_at, id) <= ({}, {})", end))
        for term, values in compared:
            terms.add(term, *values)
    rows = await con.fetch(*stated(FIND, terms, limit + 1))
    found = [
        Found(n, row, body_id, size, died_at, Place(queue, flow, action), write)
        for n, row, body_id, size, died_at, queue, flow, action, write in rows[:limit]
    ]
    if len(rows) > limit:
        return Stretch(found, After(found[-1].died_at, found[-1].id))
    return Stretch(found, end)


class Terms:
    """The conditions of a statement, and their values."""

    def __init__(self, index: str) -> None:
        self._said: list[str] = []
        self._index = index
        self.values: list[Any] = []

    @property
    def text(self) -> str:
        return f"INDEXED BY {self._index} WHERE {' AND '.join(self._said)}"

    def add(self, term: str, *values: Any) -> None:
        first = len(self.values) + 1
        self.values += values
        self._said.append(term.format(*(f"${first + at}" for at in range(len(values)))))


def walked(which: DeadFilter, after: After | None, until: int) -> Terms:
    """What an index serves."""
    if which.ids:
        terms = Terms("runs_dead_item")
        terms.add("item_id = ANY ({})", list(which.ids))
    else:
        terms = Terms("runs_dead" if which.queue is None else "runs_dead_queue")
    terms.add("state = 'FAILED' AND died_at <= {}", until)
    for term, value in (
        ("queue = {}", which.queue),
        ("died_at < {}", which.died_before_ms),
        ("died_at > {}", which.died_after_ms),
    ):
        if value is not None:
            terms.add(term, value)
    if after is not None:
        terms.add("(died_at, id) > ({}, {})", *after)
    return terms


def matching(which: DeadFilter) -> list[tuple[str, tuple[Any, ...]]]:
    """What is compared on the way."""
    error = None if which.error is None else fold(which.error)
    return [
        (term, (value,))
        for term, value in (
            ("flow = {}", which.flow),
            ("action = {}", which.action),
            ("strpos(error_folded, {}) > 0", error),
            # What died before there were reasons failed for the application's.
            ("coalesce(failure_reason, 'application') = {}", which.failure_reason),
        )
        if value is not None
    ]


def stated(text: str, terms: Terms, number: int) -> tuple[Any, ...]:
    """A statement with these conditions and this number, and its values."""
    return _statement(text, terms.text, len(terms.values) + 1), *terms.values, number


async def newest(con: Connection) -> int:
    """When the last of those that are dead now has died."""
    row = await con.first(SELECT_NEWEST)
    return row[0] if row is not None else 0


async def known_count(con: Connection, which: DeadFilter) -> int | None:
    """How many match, where the books say so."""
    compared = (which.error, which.failure_reason, which.died_before_ms, which.died_after_ms)
    if which.ids or {*compared} != {None}:
        return None
    given = {"queue": which.queue, "flow": which.flow, "action": which.action}
    names = {name: value for name, value in given.items() if value is not None}
    row = await con.first(_count_statement(tuple(names)), *names.values())
    assert row is not None
    return int(row[0])


FIND: Final = """SELECT n, id, body_id, size, died_at, queue, flow, action, write_id
    FROM runs {} ORDER BY died_at, id LIMIT {}"""
END: Final = "SELECT died_at, id FROM runs {} ORDER BY died_at, id LIMIT 1 OFFSET {}"
SELECT_NEWEST: Final = Statement("""SELECT died_at FROM runs INDEXED BY runs_dead
    WHERE state = 'FAILED' ORDER BY died_at DESC LIMIT 1""")


@cache
def _statement(text: str, where: str, last: int) -> Statement:
    """A few hundred at most: what is searched for is not in the text."""
    return Statement(text.format(where, f"${last}"))


@cache
def _count_statement(names: tuple[str, ...]) -> Statement:
    where = " AND ".join(f"{name} = ${at}" for at, name in enumerate(names, 1))
    return Statement(f"SELECT coalesce(sum(dead), 0)::bigint FROM flows WHERE {where or 'TRUE'}")
