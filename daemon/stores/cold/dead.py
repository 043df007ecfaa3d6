"""Dead letters: rows of one item each, searched in pages and changed in bounded steps.

Every change is durable on return. However many letters there are, one transaction looks at
`dead_search.SCANNED_MAX` of them at most, so that the queue is never kept waiting by a search:
`find` and `count` go on in another transaction; `retry` and `remove` return a cursor to go on with,
and may have changed nothing yet. A chain of `retry` or `remove` ends with the letters that were
there when it began, even if those that are tried again die again meanwhile.

Two daemons that change the same letters take turns, and each letter is changed once.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from actors.model.finished import Keeps
from actors.model.moves import ColdMove, guard, set_state
from actors.model.slices import lowest_bit
from actors.ports.tiers import DeadChange, DeadFilter, DeadPage, StoreCorrupt
from actors.ports.trigger_jobs import SPENT
from daemon.stores.cold.books import Books
from daemon.stores.cold.connection import Connection, Database
from daemon.stores.cold.dead_page import Page
from daemon.stores.cold.dead_search import After, Found, known_count, newest, search
from daemon.stores.cold.history import Ended, note_ended
from daemon.stores.cold.keyed import Released
from daemon.stores.cold.keys import follow
from daemon.stores.cold.rows import BadRow, pack_bits, unpack_bits
from daemon.stores.cold.statement import Statement
from forebay.errors import BadRun
from forebay.run import Run, RunHead, read_head, take_items

_CURSOR: Final = struct.Struct(">qq16s")
_NO_END: Final = 2**63 - 1


class _Cursor(NamedTuple):
    """Where a search goes on, and the time of death at which it ends."""

    until: int
    died_at: int
    row: bytes


class ColdDeadLetters:
    def __init__(self, db: Database, keeps: Callable[[], Keeps]) -> None:
        """`keeps`: what history keeps of letters that are removed."""
        self._db = db
        self._keeps = keeps

    async def find(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None, *, payloads: bool = False
    ) -> DeadPage:
        """`limit` of them or fewer: a page ends as well where it has grown too large."""
        after = _after(cursor)
        page = Page(payloads=payloads)

        async def step(con: Connection) -> tuple[Page, After | None]:
            grown = page.copy()
            found = await search(con, which, limit - len(grown.letters), after, _NO_END)
            added = await grown.add(con, found.rows)
            if added == len(found.rows):
                return grown, found.after
            last = found.rows[added - 1] if added else None
            return grown, After(last.died_at, last.id) if last is not None else after

        while True:
            page, after = await self._db.read(step)
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
        return await self._db.write(
            lambda con: _retry(con, which, limit, cursor), is_repeatable=False
        )

    async def remove(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None
    ) -> DeadChange:
        return await self._db.write(
            lambda con: _remove(con, which, limit, cursor, self._keeps()), is_repeatable=False
        )

    async def edit(self, item_id: str, payload: bytes) -> bool:
        """StoreCorrupt if the old run cannot be unpacked; BadRun if the payload is too long."""
        return await self._db.write(lambda con: _edit(con, item_id, payload))


class _Letter(NamedTuple):
    """A letter that this step has locked: no other step changes it meanwhile."""

    found: Found
    bits: bytes
    is_spent: bool


class _Chosen(NamedTuple):
    """The letters of one step, and where the next one begins."""

    letters: list[_Letter]
    cursor: bytes | None


async def _choose(con: Connection, which: DeadFilter, limit: int, cursor: bytes | None) -> _Chosen:
    until = _unpack(cursor).until if cursor is not None else await newest(con)
    found = await search(con, which, limit, _after(cursor), until)
    locked = {
        n: (bits, job == SPENT)
        for n, bits, job in await con.fetch(LOCK, [letter.n for letter in found.rows])
    }
    letters = [_Letter(one, *locked[one.n]) for one in found.rows if one.n in locked]
    return _Chosen(letters, found.after and _CURSOR.pack(until, *found.after))


async def _retry(
    con: Connection, which: DeadFilter, limit: int, cursor: bytes | None
) -> DeadChange:
    chosen = await _choose(con, which, limit, cursor)
    again = [letter.found for letter in chosen.letters if not letter.is_spent]
    await con.execute(RETRY, [letter.n for letter in again])
    books = Books()
    for letter in again:
        books.enter(letter.place, 1, letter.write, is_dead=False)
        books.leave_dead(letter.place, 1, letter.write)
    await con.record(books)
    queues = frozenset(letter.place.queue for letter in again)
    for queue in queues:
        con.wake(queue)
    return DeadChange(len(again), queues, chosen.cursor, len(chosen.letters) - len(again))


async def _remove(
    con: Connection, which: DeadFilter, limit: int, cursor: bytes | None, keeps: Keeps
) -> DeadChange:
    letters, next_cursor = await _choose(con, which, limit, cursor)
    found = [letter.found for letter in letters]
    gone = [Released(letter.found.body_id, unpack_bits(letter.bits)) for letter in letters]
    await con.rows.lock_bodies(one.body_id for one in found)
    await note_ended(
        con,
        [
            Ended(one.n, one.body_id, bits, one.size, "deleted", keeps(one.place.queue))
            for one, (_, bits, _) in zip(found, gone, strict=True)
        ],
    )
    await con.rows.delete([one.n for one in found])
    await con.keys.let_go(gone)
    await con.rows.drop_bodies(one.body_id for one in found)
    books = Books()
    for one in found:
        books.delete(one.place.queue, 1, one.write)
        books.leave_dead(one.place, 1, one.write)
    await con.record(books)
    return DeadChange(len(found), frozenset(one.place.queue for one in found), next_cursor)


async def _edit(con: Connection, item_id: str, payload: bytes) -> bool:
    # One, as a rule; more if an item was delivered twice and failed twice.
    letters = await con.fetch(SELECT_BY_ITEM, item_id)
    old = [body_id for _, body_id, _ in letters]
    bodies = await con.rows.read_bodies(old)
    new: dict[int, tuple[RunHead, bytes]] = {}
    for n, body_id, packed in letters:
        try:
            run = Run(*bodies.get(body_id))
            run.packed_ids()
        except (BadRow, BadRun) as error:
            raise StoreCorrupt(f"the run of {item_id} cannot be unpacked: {error}") from error
        data = take_items(run, [lowest_bit(unpack_bits(packed))], [payload])
        new[n] = read_head(data), data
    await con.rows.insert_bodies({head.run_id: data for head, data in new.values()})
    await con.each(
        EDIT, [(n, head.run_id, pack_bits(1), len(data)) for n, (head, data) in new.items()]
    )
    await follow(con, [(Run(head, data), 1) for head, data in new.values()])
    await con.rows.drop_bodies(old)
    return bool(letters)


def _after(cursor: bytes | None) -> After | None:
    if cursor is None:
        return None
    place = _unpack(cursor)
    return After(place.died_at, place.row)


def _unpack(cursor: bytes) -> _Cursor:
    """ValueError if it is not a cursor."""
    if len(cursor) != _CURSOR.size:
        raise ValueError("not a cursor of dead letters")
    return _Cursor._make(_CURSOR.unpack(cursor))


_DEAD: Final = guard(ColdMove.RETRY_DEAD, ColdMove.REMOVE_DEAD)
LOCK: Final = Statement(
    f"SELECT n, bits, job_id FROM runs WHERE n = ANY ($1) AND {_DEAD} ORDER BY n FOR UPDATE"
)
RETRY: Final = Statement(f"""UPDATE runs SET {set_state(ColdMove.RETRY_DEAD)}, is_due = TRUE,
    scheduled_at = :now, due_ms = 0, changed_at = :now,
    scheduled_at_initially = least(scheduled_at_initially, :now),
    attempt = 0, lock_uuid = NULL, item_id = NULL, died_at = NULL, error_folded = NULL,
    headers = NULL, failure_reason = NULL
    WHERE n = ANY ($1) AND {guard(ColdMove.RETRY_DEAD)}""")
EDIT: Final = Statement("""UPDATE runs SET body_id = $2, bits = $3, first_item = 0, size = $4,
    changed_at = :now WHERE n = $1""")
SELECT_BY_ITEM: Final = Statement("""SELECT n, body_id, bits FROM runs INDEXED BY runs_dead_item
    WHERE state = 'FAILED' AND item_id = $1 ORDER BY n FOR UPDATE""")
