"""Dead letters in SQLite: rows of one item each, searched in pages and changed in bounded steps.

Every change is durable on return. However many there are, one transaction looks at `SCANNED_MAX`
of them at most, so that the queue is never kept waiting by a search: `find` and `count` go on in
another transaction, `retry` and `remove` give back a cursor to go on with, and may have done
nothing yet. A chain of `retry` or `remove` ends with the letters that were there when it began,
even if those that are tried again die again meanwhile.
"""

import sqlite3
import struct
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from actors.model.clock import Clock
from actors.model.finished import Keeps, keep_nothing
from actors.model.moves import ColdMove, guard, set_state
from actors.model.slices import lowest_bit
from actors.ports.tiers import DeadChange, DeadFilter, DeadPage, StoreCorrupt
from actors.ports.trigger_jobs import SPENT
from daemon.stores.cold.history import Cutter
from daemon.stores.cold.rows import BadRow, pack_bits, unpack_bits
from daemon.stores.sqlite.books import Books
from daemon.stores.sqlite.connection import Database
from daemon.stores.sqlite.dead_page import Page
from daemon.stores.sqlite.dead_search import After, Found, known_count, newest, search
from daemon.stores.sqlite.history import Ended, note_ended, tries
from daemon.stores.sqlite.keys import follow, let_go
from daemon.stores.sqlite.rows import delete_row, drop_body, insert_body, read_body
from forebay.errors import BadRun
from forebay.run import Run, read_head, take_items

_CURSOR: Final = struct.Struct(">qq16s")
_NO_END: Final = 2**63 - 1


class _Cursor(NamedTuple):
    """Where a search goes on, and the time of death at which it ends."""

    until: int
    died_at: int
    row: bytes


class SqliteDeadLetters:
    """Made by SqliteCold, whose connection it shares."""

    def __init__(self, db: Database, now_ms: Clock) -> None:
        self._db = db
        self._now_ms = now_ms
        self.keeps: Keeps = keep_nothing
        """What history keeps of letters that are removed."""

    async def find(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None, *, payloads: bool = False
    ) -> DeadPage:
        """`limit` of them or fewer: a page ends as well where it has grown too large."""
        page = Page(payloads=payloads)
        after = _after(cursor)

        def work(db: sqlite3.Connection) -> After | None:
            found = search(db, which, limit - len(page.letters), after, _NO_END)
            at = after
            for row in found.rows:
                if not page.add(db, row):
                    return at
                at = After(row.died_at, row.id)
            return found.after

        while True:
            after = await self._db.read(work)
            if after is None or page.is_full or len(page.letters) >= limit:
                return DeadPage(page.letters, after and _CURSOR.pack(_NO_END, *after))

    async def count(self, which: DeadFilter, stop_at: int) -> int:
        known = await self._db.read(partial(known_count, which=which))
        if known is not None:
            return min(known, stop_at)
        count, after = 0, None
        while count < stop_at:
            found = await self._db.read(
                partial(search, which=which, limit=stop_at - count, after=after, until=_NO_END)
            )
            count += len(found.rows)
            after = found.after
            if after is None:
                break
        return count

    async def retry(self, which: DeadFilter, limit: int, cursor: bytes | None = None) -> DeadChange:
        now = self._now_ms()

        def retry_one(db: sqlite3.Connection, letter: Found, books: Books) -> bool:
            if not db.execute(RETRY, (now, letter.n, SPENT)).rowcount:
                return False
            books.enter(letter.place, 1, letter.write, is_dead=False)
            return True

        return await self._db.write(lambda db: _change(db, which, limit, cursor, retry_one))

    async def remove(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None
    ) -> DeadChange:
        now = self._now_ms()

        def work(db: sqlite3.Connection) -> DeadChange:
            keeps, cutter = next(kept), Cutter()

            def remove_one(db: sqlite3.Connection, letter: Found, books: Books) -> bool:
                keep = keeps(letter.place.queue)
                packed, size = db.execute(SELECT_ENDED, (letter.n,)).fetchone()
                bits = unpack_bits(packed)
                if keep != "none":
                    ended = Ended(letter.n, letter.body_id, bits, size, "deleted")
                    note_ended(db, ended, keep, now, cutter)
                let_go(db, letter.body_id, bits, None)
                delete_row(db, letter.n)
                drop_body(db, letter.body_id)
                books.delete(letter.place.queue, 1, letter.write)
                return True

            return _change(db, which, limit, cursor, remove_one)

        kept = tries(self.keeps)
        return await self._db.write(work)

    async def edit(self, item_id: str, payload: bytes) -> bool:
        """StoreCorrupt if the old run cannot be unpacked; BadRun if the payload is too long."""
        now = self._now_ms()
        return await self._db.write(lambda db: _edit(db, item_id, payload, now))


def _change(
    db: sqlite3.Connection,
    which: DeadFilter,
    limit: int,
    cursor: bytes | None,
    change_one: Callable[[sqlite3.Connection, Found, Books], bool],
) -> DeadChange:
    until = _unpack(cursor).until if cursor is not None else newest(db)
    found = search(db, which, limit, _after(cursor), until)
    books = Books()
    changed = [letter for letter in found.rows if change_one(db, letter, books)]
    for letter in changed:
        books.leave_dead(letter.place, 1, letter.write)
    books.write(db)
    return DeadChange(
        done=len(changed),
        queues=frozenset(letter.place.queue for letter in changed),
        cursor=found.after and _CURSOR.pack(until, *found.after),
        spent=len(found.rows) - len(changed),
    )


def _edit(db: sqlite3.Connection, item_id: str, payload: bytes, now: int) -> bool:
    # One, as a rule; more if an item was delivered twice and failed twice.
    letters = db.execute(SELECT_BY_ITEM, (item_id,)).fetchall()
    for n, body_id, packed in letters:
        try:
            run = Run(*read_body(db, body_id))
            run.packed_ids()
        except (BadRow, BadRun) as error:
            raise StoreCorrupt(f"the run of {item_id} cannot be unpacked: {error}") from error
        data = take_items(run, [lowest_bit(unpack_bits(packed))], [payload])
        head = read_head(data)
        insert_body(db, head.run_id, data)
        db.execute(EDIT, (head.run_id, pack_bits(1), len(data), now, n))
        follow(db, Run(head, data), 1)
        drop_body(db, body_id)
    return bool(letters)


def _after(cursor: bytes | None) -> After | None:
    if cursor is None:
        return None
    place = _unpack(cursor)
    return After(place.died_at, place.row)


def _unpack(cursor: bytes) -> _Cursor:
    """ValueError if it is no cursor."""
    if len(cursor) != _CURSOR.size:
        raise ValueError("not a cursor of dead letters")
    return _Cursor._make(_CURSOR.unpack(cursor))


RETRY: Final = f"""UPDATE runs SET {set_state(ColdMove.RETRY_DEAD)}, is_due = 1, scheduled_at = ?1,
    due_ms = 0, scheduled_at_initially = min(scheduled_at_initially, ?1), changed_at = ?1,
    attempt = 0, lock_uuid = NULL, item_id = NULL, died_at = NULL, error_folded = NULL,
    headers = NULL, failure_reason = NULL
    WHERE n = ?2 AND {guard(ColdMove.RETRY_DEAD)} AND job_id IS NOT ?3"""
EDIT: Final = """UPDATE runs SET body_id = ?, bits = ?, first_item = 0, size = ?, changed_at = ?
    WHERE n = ?"""
SELECT_ENDED: Final = "SELECT bits, size FROM runs WHERE n = ?"
SELECT_BY_ITEM: Final = """SELECT n, body_id, bits FROM runs INDEXED BY runs_dead_item
    WHERE state = 'FAILED' AND item_id = ?"""
