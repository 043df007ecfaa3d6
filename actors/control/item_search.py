"""Searches items by queue, state, key, correlation, error and age, page by page.

The places are searched one after the other: the journal queue by queue, the cold store, the dead
letters, the history. A request looks at `BYTES_MAX` and takes `SEARCH_S` at most, and returns a
cursor to continue; a page may be empty without being the last. It owns nothing and keeps nothing:
the cursor holds the whole state of a search. Runs are unpacked and compared in a thread.

It cannot see a single moment: an item that moves while pages are read may appear twice or not at
all.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from actors.control.item_view import Sighting, of_cold, of_journal, of_letter, summary
from actors.model.correlation import correlation_of, is_of_trace
from actors.model.slices import ItemError, indexes, item_bits
from actors.model.states import State
from actors.ports.tiers import (
    ColdScan,
    ColdSight,
    DeadFilter,
    DeadLetter,
    Whereabouts,
)
from actors.spooler.messages import Inquire, JournalRun, ScanRuns
from actors.tiers.tiers import Tiers
from forebay.errors import BadRun
from forebay.item import FailureReason
from forebay.run import KEYS, Run, RunHead
from forebay.strict_json import loads

STEP_ROWS: Final = 64
STEP_BYTES: Final = 1024 * 1024
STEP_LETTERS: Final = 500
BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of runs, as stored."""
STEPS_MAX: Final = 64
SEARCH_S: Final = 1.0
CURSOR_TEXT_MAX: Final = 1000
_PLACES: Final = ("journal", "cold", "dead", "history")
_STATES_OF: Final = {
    "journal": {State.SPOOLED, State.SCHEDULED, State.QUEUED, State.RUNNING},
    "cold": {State.COLD_QUEUED, State.SCHEDULED, State.QUEUED, State.RUNNING},
    "dead": {State.FAILED},
    "history": {State.DONE, State.DELETED},
}


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """Selects items; None matches all."""

    queue: str | None = None
    state: State | None = None
    key: str | None = None
    correlation_id: str | None = None
    error: str | None = None
    """Part of the text of the last error, ignoring case."""
    before_ms: int | None = None
    """Enqueued before then."""
    after_ms: int | None = None
    traceparent: str | None = None
    """Exactly this one, or the trace id alone."""
    failure_reason: FailureReason | None = None
    """Of the last error."""


class Cursor(NamedTuple):
    place: str
    queue: str = ""
    """For the journal."""
    at: int = -1
    """The row or position to continue from; -1: before the first."""
    item: int = 0
    """The first item of that row that was not seen."""
    letters: str = ""
    """The cursor of the dead letters."""


class FoundRow(NamedTuple):
    """One row of a step: its items, and its position."""

    at: int
    head: RunHead
    data: bytes
    sightings: Callable[[], Iterator[Sighting]]


class SearchStep(NamedTuple):
    rows: list[FoundRow]
    rest: Cursor | None
    """Where the next step begins; None: the search is over."""


class ItemSearch:
    def __init__(
        self,
        tiers: Tiers,
    ) -> None:
        self._spooler = tiers.spooler.client
        self._warm = tiers.warm
        self._cold = tiers.cold.items
        self._dead = tiers.cold.dead_letters
        self._now_ms = tiers.now_ms

    async def search(
        self, which: ItemFilter, limit: int, cursor: str
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Items, and the cursor of the next page. Raises ValueError for an invalid cursor."""
        at: Cursor | None = read_cursor(cursor) if cursor else first_place(which)
        found: list[dict[str, Any]] = []
        until, seen_bytes, steps = trio.current_time() + SEARCH_S, 0, 0
        while at is not None and len(found) < limit and steps < STEPS_MAX:
            if seen_bytes >= BYTES_MAX or trio.current_time() >= until:
                break
            if at.place == "dead":
                letters, at = await self._letters(which, at, limit - len(found))
                found += letters
            else:
                step = await self._step(which, at)
                seen_bytes += sum(len(row.data) for row in step.rows)
                room = limit - len(found)
                matching, at = await trio.to_thread.run_sync(compare, which, at, step, room)
                found += matching
            steps += 1
        return found, None if at is None else write_cursor(at)

    async def _letters(
        self, which: ItemFilter, at: Cursor, limit: int
    ) -> tuple[list[dict[str, Any]], Cursor | None]:
        cursor = base64.b64decode(at.letters) if at.letters else None
        reason = which.failure_reason
        dead = DeadFilter(queue=which.queue, error=which.error, failure_reason=reason)
        page = await self._dead.find(dead, max(limit, letters_at_once(which)), cursor)
        found = [of_letter(letter) for letter in page.letters if letter_matches(letter, which)]
        if len(found) > limit:
            # Read again with a smaller limit: only the end of a page has a cursor.
            fitting = [n for n, one in enumerate(page.letters, 1) if letter_matches(one, which)]
            page = await self._dead.find(dead, fitting[limit - 1], cursor)
            found = [of_letter(letter) for letter in page.letters if letter_matches(letter, which)]
        if page.cursor is None:
            return found, next_place(which, "dead")
        return found, at._replace(letters=base64.b64encode(page.cursor).decode())

    async def _step(self, which: ItemFilter, at: Cursor) -> SearchStep:
        if at.place == "journal":
            return await self._step_journal(which, at)
        if at.place == "cold":
            scan = await self._cold.scan(which.queue, max(at.at, 0), STEP_ROWS, STEP_BYTES)
        else:
            after = at.at if at.at > 0 else 0
            scan = await self._cold.scan_history(which.queue, after, STEP_ROWS, STEP_BYTES)
        return await self._of_cold(which, at, scan)

    async def _of_cold(self, which: ItemFilter, at: Cursor, scan: ColdScan) -> SearchStep:
        warm: dict[bytes, Whereabouts] = {}
        for queue in {sight.head.queue for sight in scan.rows if sight.lock is not None}:
            ids = (s.head.run_id for s in scan.rows if s.lock is not None and s.head.queue == queue)
            warm |= await self._warm.locate(queue, frozenset(ids))

        def sightings(sight: ColdSight) -> Iterator[Sighting]:
            where = warm.get(sight.head.run_id, Whereabouts())
            return (of_cold(sight, index, where) for index in indexes(sight.bits))

        rows = [FoundRow(s.place, s.head, s.data, partial(sightings, s)) for s in scan.rows]
        rest = next_place(which, at.place)
        return SearchStep(rows, rest if scan.after is None else at._replace(at=scan.after, item=0))

    async def _step_journal(self, which: ItemFilter, at: Cursor) -> SearchStep:
        queue = at.queue or await self._queue_after("", which)
        if not queue:
            return SearchStep([], next_place(which, "journal"))
        runs, after = await self._spooler.ask(ScanRuns(queue, at.at, STEP_ROWS, STEP_BYTES))
        lent = frozenset(found.run.head.run_id for found in runs if found.is_lent)
        warm = await self._warm.locate(queue, lent) if lent else {}
        now_ms = self._now_ms()

        def sightings(found: JournalRun) -> Iterator[Sighting]:
            head = found.run.head
            where = warm.get(head.run_id, Whereabouts())
            for index in indexes(item_bits(0, head.count) & ~found.done):
                sighting = of_journal(found, index, where, now_ms)
                if sighting is not None:
                    yield sighting

        rows = [
            FoundRow(found.run.position, found.run.head, found.run.data, partial(sightings, found))
            for found in runs
        ]
        if after is not None:
            return SearchStep(rows, Cursor("journal", queue, after))
        following = await self._queue_after(queue, which)
        if following:
            return SearchStep(rows, Cursor("journal", following))
        return SearchStep(rows, next_place(which, "journal"))

    async def _queue_after(self, queue: str, which: ItemFilter) -> str:
        """The next queue that has items in the journal; empty: there is none."""
        if which.queue is not None:
            return which.queue if not queue else ""
        report = await self._spooler.ask(Inquire())
        names = (name for name, entry in report["queues"].items() if entry["held"])
        return min((name for name in names if name > queue), default="")


def compare(
    which: ItemFilter, at: Cursor, step: SearchStep, room: int
) -> tuple[list[dict[str, Any]], Cursor | None]:
    """The matching items of a step, as many as there is room for, and where to continue."""
    found: list[dict[str, Any]] = []
    # A row that was cut is read again: the cursor is just before it, and history goes backwards.
    direction = -1 if at.place == "history" else 1
    for row in step.rows:
        if not run_matches(row.head, which):
            continue
        run = Run(row.head, row.data)
        first = at.item if row.at == at.at + direction else 0
        for sighting in row.sightings():
            if sighting.index < first or not item_matches(sighting, run, which):
                continue
            if len(found) == room:
                queue = row.head.queue if at.place == "journal" else ""
                return found, Cursor(at.place, queue, row.at - direction, sighting.index)
            found.append(summary(sighting, run))
    return found, step.rest


def run_matches(head: RunHead, which: ItemFilter) -> bool:
    if which.before_ms is not None and head.enqueued_ms >= which.before_ms:
        return False
    if which.after_ms is not None and head.enqueued_ms <= which.after_ms:
        return False
    if which.key is not None and not head.flags & KEYS:
        return False
    if which.correlation_id is None and which.traceparent is None:
        return True
    return bool(head.packed_headers) and is_correlated(head.headers(), which)


def item_matches(sighting: Sighting, run: Run, which: ItemFilter) -> bool:
    if which.state is not None and sighting.state is not which.state:
        return False
    if which.error is not None and not error_matches(sighting.errors, which.error):
        return False
    if not has_failed_so(sighting.errors, which.failure_reason):
        return False
    if which.key is None:
        return True
    try:
        return run.keys(sighting.index, sighting.index + 1)[0] == which.key.encode()
    except (BadRun, UnicodeEncodeError):
        return False


def letter_matches(letter: DeadLetter, which: ItemFilter) -> bool:
    """Checks what the dead letters' own filter cannot."""
    return (
        (which.before_ms is None or letter.enqueued_ms < which.before_ms)
        and (which.after_ms is None or letter.enqueued_ms > which.after_ms)
        and (which.key is None or letter.key == which.key)
        and is_correlated(letter.headers, which)
    )


def is_correlated(headers: Mapping[str, str], which: ItemFilter) -> bool:
    if which.traceparent is not None and not is_of_trace(headers, which.traceparent):
        return False
    return which.correlation_id is None or correlation_of(headers) == which.correlation_id


def has_failed_so(errors: Sequence[ItemError], reason: FailureReason | None) -> bool:
    return reason is None or bool(errors and errors[-1].failure_reason == reason)


def letters_at_once(which: ItemFilter) -> int:
    """How many letters to read per step: more than are wanted if few of them may match."""
    more = (
        which.key,
        which.correlation_id,
        which.traceparent,
        which.before_ms,
        which.after_ms,
    )
    return STEP_LETTERS if any(wanted is not None for wanted in more) else 1


def error_matches(errors: Sequence[Any], text: str) -> bool:
    return bool(errors) and text.casefold() in errors[-1].text.casefold()


def places(which: ItemFilter) -> list[str]:
    """The places where wanted items may be."""
    return [p for p in _PLACES if which.state is None or which.state in _STATES_OF[p]]


def first_place(which: ItemFilter) -> Cursor:
    return Cursor(places(which)[0])


def next_place(which: ItemFilter, place: str) -> Cursor | None:
    later = [p for p in places(which) if _PLACES.index(p) > _PLACES.index(place)]
    return Cursor(later[0]) if later else None


def write_cursor(cursor: Cursor) -> str:
    text = json.dumps(cursor, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str) -> Cursor:
    """Raises ValueError for an invalid cursor."""
    try:
        if len(text) > CURSOR_TEXT_MAX or not text.isascii():
            raise ValueError
        content = loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        place, queue, at, item, letters = content
        is_good = (
            place in _PLACES
            and isinstance(queue, str)
            and isinstance(letters, str)
            and all(type(n) is int and -1 <= n < 2**63 for n in (at, item))
        )
        if not is_good:
            raise ValueError
        base64.b64decode(letters, validate=True)
    except (ValueError, TypeError):
        raise ValueError("not a cursor of items") from None
    return Cursor(place, queue, at, item, letters)
