"""A page of dead letters, bounded in what it holds and in what it costs.

A thousand letters may have payloads of megabytes each, or be single items of a thousand large
runs, each of which is unpacked for one payload. So a page ends early, and the next one begins with
the letter that it had no room for. One letter always fits.

Letters are read some at a time, with the runs of those whose payloads are wanted.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from actors.model.slices import ItemError, lowest_bit
from actors.ports.tiers import DeadLetter
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.dead_search import Found
from daemon.stores.cold.rows import BadRow, Bodies, Unpacked, read_errors, unpack_bits
from daemon.stores.cold.statement import Statement
from forebay.errors import BadRun
from forebay.head import unpack_headers

PAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Payloads, errors and headers: half of what an answer may hold, as JSON makes them longer."""
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of runs, for their payloads: they stay in memory until the page is done."""
READ_AT_ONCE: Final = 32
BODY_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""How many letters are read together, and how large their runs may be."""


class Page:
    def __init__(self, *, payloads: bool) -> None:
        self.letters: list[DeadLetter] = []
        self.is_full = False
        self._has_payloads = payloads
        self._runs = Unpacked()
        self._unpacked_bytes = 0
        self._bytes = 0

    def copy(self) -> "Page":
        """For a step that may be run again: what it adds must not be there twice."""
        copy = Page(payloads=self._has_payloads)
        copy.letters = self.letters.copy()
        copy._runs = self._runs
        copy._unpacked_bytes = self._unpacked_bytes
        copy._bytes = self._bytes
        return copy

    async def add(self, con: Connection, found: Sequence[Found]) -> int:
        """How many of them there was room for."""
        added = 0
        for some in self._portions(found):
            rows = {n: row for n, *row in await con.fetch(SELECT, [letter.n for letter in some])}
            bodies = Bodies({})
            if self._has_payloads:
                bodies = await con.rows.read_bodies(letter.body_id for letter in some)
            for letter in some:
                if not self._add(letter, rows[letter.n], bodies):
                    self.is_full = True
                    return added
                added += 1
        return added

    def _portions(self, found: Sequence[Found]) -> Iterator[Sequence[Found]]:
        first, room = 0, BODY_BYTES_AT_ONCE
        for at, letter in enumerate(found):
            size = letter.size if self._has_payloads else 0
            if at > first and (at - first == READ_AT_ONCE or size > room):
                yield found[first:at]
                first, room = at, BODY_BYTES_AT_ONCE
            room -= size
        if found:
            yield found[first:]

    def _add(self, letter: Found, row: Sequence[Any], bodies: Bodies) -> bool:
        if self._unpacked_bytes >= UNPACKED_BYTES_MAX:
            return False
        item_id, key, priority, attempt, enqueued_ms, errors, headers, packed, changed_ms = row
        payload = self._payload(letter, unpack_bits(packed), bodies) if self._has_payloads else None
        size = len(errors) + len(headers or b"") + len(payload or b"")
        if self.letters and self._bytes + size > PAGE_BYTES_MAX:
            return False
        # What is left of a letter that is damaged is shown: it may still be removed.
        history: tuple[ItemError, ...] = ()
        named: dict[str, str] = {}
        with suppress(BadRow, BadRun):
            history = read_errors(errors)
            named = unpack_headers(headers or b"")
        self._bytes += size
        self.letters.append(
            DeadLetter(
                row=letter.id,
                id=item_id,
                queue=letter.place.queue,
                flow=letter.place.flow,
                action=letter.place.action,
                key=key,
                priority=priority,
                attempt=attempt,
                enqueued_ms=enqueued_ms,
                died_ms=letter.died_at,
                errors=history,
                headers=named,
                payload=payload,
                changed_ms=changed_ms or 0,
            )
        )
        return True

    def _payload(self, letter: Found, bits: int, bodies: Bodies) -> bytes | None:
        """None if it cannot be unpacked; the rest of the letter is shown all the same."""
        index = lowest_bit(bits)
        try:
            run = self._runs.get(letter.body_id)
            if run is None:
                run = self._runs.run(*bodies.get(letter.body_id))
                self._unpacked_bytes += run.head.raw_bytes
            return run.payloads(index, index + 1)[0]
        except (BadRow, BadRun, IndexError):
            return None


SELECT: Final = Statement("""SELECT n, item_id, key, priority, attempt, created_at,
    :raw(error_history), headers, bits, changed_at FROM runs WHERE n = ANY ($1)""")
