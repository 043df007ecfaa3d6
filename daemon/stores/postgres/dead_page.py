"""A page of dead letters in the making, bounded as in daemon/stores/sqlite/dead_page.py.

Letters are read some at a time, with the runs of those whose payloads are wanted, since a page may
end early.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from actors.model.slices import ItemError, lowest_bit
from actors.ports.tiers import DeadLetter
from daemon.stores.cold.rows import BadRow, Bodies, Unpacked, read_errors, unpack_bits
from daemon.stores.cold.text import from_text
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.dead_search import Found
from daemon.stores.postgres.rows import read_bodies
from daemon.stores.sqlite.dead_page import PAGE_BYTES_MAX, UNPACKED_BYTES_MAX
from forebay.errors import BadRun
from forebay.head import unpack_headers

READ_AT_ONCE: Final = 32


class Page:
    def __init__(self, *, payloads: bool) -> None:
        self.letters: list[DeadLetter] = []
        self.is_full = False
        self._has_payloads = payloads
        self._runs = Unpacked()
        self._unpacked_bytes = 0
        self._bytes = 0

    def copy(self) -> "Page":
        copy = Page(payloads=self._has_payloads)
        copy.letters = self.letters.copy()
        copy._runs = self._runs
        copy._unpacked_bytes = self._unpacked_bytes
        copy._bytes = self._bytes
        return copy

    async def add(self, con: Connection, found: Sequence[Found]) -> int:
        """How many of them there was room for."""
        for first in range(0, len(found), READ_AT_ONCE):
            some = found[first : first + READ_AT_ONCE]
            rows = {row["n"]: row for row in await con.fetch(SELECT, [row.n for row in some])}
            bodies = Bodies({})
            if self._has_payloads:
                bodies = await read_bodies(con, (row.body_id for row in some))
            for place, letter in enumerate(some):
                if not self._add(letter, rows[letter.n], bodies):
                    return first + place
        return len(found)

    def _add(self, letter: Found, row: Any, bodies: Bodies) -> bool:
        if self._unpacked_bytes >= UNPACKED_BYTES_MAX:
            self.is_full = True
            return False
        _, item_id, key, priority, attempt, enqueued_ms, errors, headers, packed, changed_ms = row
        payload = self._payload(letter, unpack_bits(packed), bodies) if self._has_payloads else None
        size = len(errors) + len(headers or b"") + len(payload or b"")
        if self.letters and self._bytes + size > PAGE_BYTES_MAX:
            self.is_full = True
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
                id=from_text(item_id),
                queue=letter.place.queue,
                flow=letter.place.flow,
                action=letter.place.action,
                key=None if key is None else from_text(key),
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


SELECT: Final = """SELECT n, item_id, key, priority, attempt, created_at, error_history, headers,
    bits, changed_at FROM runs WHERE n = ANY ($1)"""
