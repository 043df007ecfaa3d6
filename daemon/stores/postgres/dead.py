"""Dead letters in PostgreSQL: searched in pages and changed in bounded steps.

As in daemon/stores/sqlite/dead.py. Two daemons that change the same letters take turns, and each
letter is changed once.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from actors.model.finished import Keeps, keep_nothing
from actors.model.moves import ColdMove, guard, set_state
from actors.model.slices import lowest_bit
from actors.ports.tiers import DeadChange, DeadFilter, DeadPage, StoreCorrupt
from actors.ports.trigger_jobs import SPENT
from daemon.stores.cold.keyed import Released
from daemon.stores.cold.rows import BadRow, pack_bits, unpack_bits
from daemon.stores.cold.text import to_text
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.dead_page import Page
from daemon.stores.postgres.dead_search import Found, known_count, newest, search
from daemon.stores.postgres.history import Ended, note_ended
from daemon.stores.postgres.keys import follow, let_go
from daemon.stores.postgres.rows import NOW, drop_bodies, insert_bodies, lock_bodies, read_bodies
from daemon.stores.sqlite.dead_search import After
from forebay.errors import BadRun
from forebay.run import Run, read_head, take_items

_CURSOR: Final = struct.Struct(">qq16s")
_NO_END: Final = 2**63 - 1


class _Cursor(NamedTuple):
    """Where a search goes on, and the time of death at which it ends."""

    until: int
    died_at: int
    row: bytes


class PostgresDeadLetters:
    """Made by PostgresCold, whose connections it shares."""

    def __init__(
        self,
        db: Database,
        daemon: bytes,
        now_ms: Callable[[], int | None],
        notices: Callable[[set[str]], str | None],
    ) -> None:
        self._db = db
        self._daemon = daemon
        self._now_ms = now_ms
        self._notices = notices
        self.keeps: Keeps = keep_nothing
        """What history keeps of letters that are removed."""

    async def find(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None, *, payloads: bool = False
    ) -> DeadPage:
        """`limit` of them or fewer: a page ends as well where it has grown too large."""
        after = _after(cursor)
        page = Page(payloads=payloads)

        async def work(con: Connection) -> tuple[Page, After | None]:
            # It may be run again: what it adds must not be there twice.
            grown = page.copy()
            found = await search(con, which, limit - len(grown.letters), after, _NO_END)
            added = await grown.add(con, found.rows)
            if added == len(found.rows):
                return grown, found.after
            last = found.rows[added - 1] if added else None
            return grown, After(last.died_at, last.id) if last is not None else after

        while True:
            page, after = await self._db.read(work)
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
        now_ms = self._now_ms()

        async def work(con: Connection) -> DeadChange:
            books = SharedBooks()
            change, chosen = await _chosen(con, which, limit, cursor)
            tried = await con.fetch(RETRY, now_ms, [letter.n for letter in chosen], SPENT)
            again = {n for (n,) in tried}
            letters = [letter for letter in chosen if letter.n in again]
            for letter in letters:
                books.enter(letter.place, 1, letter.write, is_dead=False)
                books.leave_dead(letter.place, 1, letter.write)
            await books.record(con, self._daemon)
            queues = frozenset(letter.place.queue for letter in letters)
            spent = len(chosen) - len(letters)
            return DeadChange(len(letters), queues, change.cursor, spent)

        return await self._db.write(
            work, is_repeatable=False, after=lambda change: self._notices(set(change.queues))
        )

    async def remove(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None
    ) -> DeadChange:
        now_ms = self._now_ms()

        async def work(con: Connection) -> DeadChange:
            books = SharedBooks()
            change, letters = await _chosen(con, which, limit, cursor)
            await self._note(con, letters, now_ms)
            gone = await con.fetch(REMOVE, [one.n for one in letters])
            ended = [Released(body_id, unpack_bits(bits)) for body_id, bits in gone]
            await let_go(con, ended, now_ms)
            await drop_bodies(con, (letter.body_id for letter in letters))
            for letter in letters:
                books.delete(letter.place.queue, 1, letter.write)
                books.leave_dead(letter.place, 1, letter.write)
            await books.record(con, self._daemon)
            return change

        return await self._db.write(work, is_repeatable=False)

    async def edit(self, item_id: str, payload: bytes) -> bool:
        """StoreCorrupt if the old run cannot be unpacked; BadRun if the payload is too long."""
        now_ms = self._now_ms()
        return await self._db.write(lambda con: _edit(con, item_id, payload, now_ms))

    async def _note(self, con: Connection, letters: Sequence[Found], now_ms: int | None) -> None:
        kept = [letter for letter in letters if self.keeps(letter.place.queue) != "none"]
        if not kept:
            return
        rows = await con.fetch(SELECT_ENDED, [letter.n for letter in kept])
        sizes = {n: (unpack_bits(bits), size) for n, bits, size in rows}
        await lock_bodies(con, (letter.body_id for letter in letters))
        ended = [
            Ended(one.n, one.body_id, *sizes[one.n], "deleted", self.keeps(one.place.queue))
            for one in kept
        ]
        await note_ended(con, ended, now_ms)


async def _chosen(
    con: Connection, which: DeadFilter, limit: int, cursor: bytes | None
) -> tuple[DeadChange, list[Found]]:
    """The letters of one step, locked: nobody else has changed them, or will."""
    until = _unpack(cursor).until if cursor is not None else await newest(con)
    found = await search(con, which, limit, _after(cursor), until)
    locked = await con.fetch(LOCK, [letter.n for letter in found.rows])
    still = {n for (n,) in locked}
    letters = [letter for letter in found.rows if letter.n in still]
    change = DeadChange(
        done=len(letters),
        queues=frozenset(letter.place.queue for letter in letters),
        cursor=found.after and _CURSOR.pack(until, *found.after),
    )
    return change, letters


async def _edit(con: Connection, item_id: str, payload: bytes, now_ms: int | None) -> bool:
    # One, as a rule; more if an item was delivered twice and failed twice.
    letters = await con.fetch(SELECT_BY_ITEM, to_text(item_id))
    bodies = await read_bodies(con, (row["body_id"] for row in letters))
    for n, body_id, packed in letters:
        try:
            run = Run(*bodies.get(body_id))
            run.packed_ids()
        except (BadRow, BadRun) as error:
            raise StoreCorrupt(f"the run of {item_id} cannot be unpacked: {error}") from error
        data = take_items(run, [lowest_bit(unpack_bits(packed))], [payload])
        head = read_head(data)
        await insert_bodies(con, {head.run_id: data})
        await con.execute(EDIT, now_ms, n, head.run_id, pack_bits(1), len(data))
        await follow(con, Run(head, data), 1)
        await drop_bodies(con, [body_id])
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


_DEAD: Final = guard(ColdMove.RETRY_DEAD, ColdMove.REMOVE_DEAD)
LOCK: Final = f"SELECT n FROM runs WHERE n = ANY ($1) AND {_DEAD} ORDER BY n FOR UPDATE"
RETRY: Final = f"""UPDATE runs SET {set_state(ColdMove.RETRY_DEAD)}, is_due = true,
    scheduled_at = {NOW}, due_ms = 0, changed_at = {NOW},
    scheduled_at_initially = least(scheduled_at_initially, {NOW}),
    attempt = 0, lock_uuid = NULL, holder = NULL, item_id = NULL, died_at = NULL,
    error_folded = NULL, headers = NULL, failure_reason = NULL
    WHERE n = ANY ($2) AND job_id IS DISTINCT FROM $3 RETURNING n"""
REMOVE: Final = "DELETE FROM runs WHERE n = ANY ($1) RETURNING body_id, bits"
EDIT: Final = f"""UPDATE runs SET body_id = $3, bits = $4, first_item = 0, size = $5,
    changed_at = {NOW} WHERE n = $2"""
SELECT_ENDED: Final = "SELECT n, bits, size FROM runs WHERE n = ANY ($1)"
SELECT_BY_ITEM: Final = """SELECT n, body_id, bits FROM runs
    WHERE state = 'FAILED' AND item_id = $1 ORDER BY n FOR UPDATE"""
