"""A page of dead letters in the making, bounded in what it holds and in what it costs.

A thousand letters may have payloads of megabytes each, or be single items of a thousand large
runs, each of which is unpacked for one payload. So a page ends early, and the next one begins with
what it had no room for. One letter always fits.
"""

import sqlite3
from contextlib import suppress
from typing import Final

from actors.model.slices import ItemError, lowest_bit
from actors.ports.tiers import DeadLetter
from daemon.stores.cold.rows import BadRow, Unpacked, read_errors, unpack_bits
from daemon.stores.sqlite.dead_search import Found
from daemon.stores.sqlite.rows import read_body
from forebay.errors import BadRun
from forebay.head import unpack_headers

PAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Payloads, errors and headers: half of what an answer may hold, as JSON makes them longer."""
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of runs, for their payloads: they stay in memory until the page is done."""


class Page:
    def __init__(self, *, payloads: bool) -> None:
        self.letters: list[DeadLetter] = []
        self.is_full = False
        self._has_payloads = payloads
        self._runs = Unpacked()
        self._unpacked_bytes = 0
        self._bytes = 0

    def add(self, db: sqlite3.Connection, row: Found) -> bool:
        """False: there was no room for it."""
        if self._unpacked_bytes >= UNPACKED_BYTES_MAX:
            self.is_full = True
            return False
        (item_id, key, priority, attempt, enqueued_ms, errors, headers, packed, changed_ms) = (
            db.execute(SELECT_LETTER, (row.n,)).fetchone()
        )
        payload = self._payload(db, row, unpack_bits(packed)) if self._has_payloads else None
        size = len(errors or b"") + len(headers or b"") + len(payload or b"")
        if self.letters and self._bytes + size > PAGE_BYTES_MAX:
            self.is_full = True
            return False
        # What is left of a letter that is damaged is shown: it may still be removed.
        history: tuple[ItemError, ...] = ()
        named: dict[str, str] = {}
        with suppress(BadRow, BadRun):
            history = read_errors(errors)
            named = unpack_headers(headers)
        self._bytes += size
        self.letters.append(
            DeadLetter(
                row=row.id,
                id=item_id,
                queue=row.place.queue,
                flow=row.place.flow,
                action=row.place.action,
                key=key,
                priority=priority,
                attempt=attempt,
                enqueued_ms=enqueued_ms,
                died_ms=row.died_at,
                errors=history,
                headers=named,
                payload=payload,
                changed_ms=changed_ms or 0,
            )
        )
        return True

    def _payload(self, db: sqlite3.Connection, row: Found, bits: int) -> bytes | None:
        """None if it cannot be unpacked; the rest of the letter is shown all the same."""
        index = lowest_bit(bits)
        try:
            run = self._runs.get(row.body_id)
            if run is None:
                run = self._runs.run(*read_body(db, row.body_id))
                self._unpacked_bytes += run.head.raw_bytes
            return run.payloads(index, index + 1)[0]
        except (BadRow, BadRun, IndexError):
            return None


SELECT_LETTER: Final = """SELECT item_id, key, priority, attempt, created_at,
    CAST(error_history AS BLOB), headers, bits, changed_at FROM runs WHERE n = ?"""
