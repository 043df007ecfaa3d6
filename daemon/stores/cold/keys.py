"""Unique keys: what an operator asks of one, and what becomes of an item that is replaced.

Where keys are stored is the dialects' (`KeyTable`); who gets one is decided in `offers`. Items that
end let go of their keys in the step that ends them (`KeyTable.let_go`).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from actors.keys.arbiter import item_refs
from actors.model.keys import Holder, is_free
from actors.model.slices import indexes
from daemon.stores.cold.books import Books
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.keyed import Held, KeyedRow, Moved
from forebay.errors import BadRun
from forebay.run import IDS, KEYS, Run


async def show(con: Connection, queue: str, key: bytes) -> Holder | None:
    """The holder of a key. None: the key is free."""
    held = (await con.keys.find(queue, [key], with_rows=True, locks=False)).get(key)
    return None if held is None or is_free(held.holder, await con.now()) else held.holder


async def drop(con: Connection, queue: str, key: bytes) -> Holder | None:
    """Frees a key, unless its item has started or is dead; an item that waits is deleted. Returns
    the holder that was found."""
    held = (await con.keys.find(queue, [key], with_rows=True)).get(key)
    if held is None:
        return None
    if held.holder.phase in ("started", "dead"):
        return held.holder
    if held.holder.phase == "waiting":
        books = Books()
        await void(con, [held], books)
        await con.record(books)
    await con.keys.release(queue, [held])
    return None if is_free(held.holder, await con.now()) else held.holder


async def follow(con: Connection, cut: Iterable[tuple[Run, int]]) -> None:
    """Items of these runs have come from other bodies, and take their keys with them."""
    moved: list[Moved] = []
    for run, bits in cut:
        head = run.head
        if head.flags & KEYS and head.flags & IDS:
            # Whoever acquires a run that cannot be read sets it aside; the keys stay taken.
            with suppress(BadRun):
                keys, refs = run.keys(), item_refs(run)
                moved += [
                    Moved(head.queue, keys[i], refs[i], head.run_id, i)
                    for i in indexes(bits)
                    if keys[i]
                ]
    await con.keys.follow(moved)


async def void(con: Connection, waiting: Sequence[Held], books: Books) -> None:
    """Deletes items that wait. Their keys are the caller's to release."""
    rows: dict[int, tuple[KeyedRow, bytes]] = {}
    gone: dict[int, int] = {}
    for held in waiting:
        where = held.where
        assert where.row is not None
        rows[where.row.n] = (where.row, where.body_id)
        gone[where.row.n] = gone.get(where.row.n, 0) | 1 << where.place
    ended: list[int] = []
    bodies: set[bytes] = set()
    rests: dict[int, int] = {}
    for n, (row, body_id) in rows.items():
        rest, items = row.bits & ~gone[n], gone[n].bit_count()
        if rest:
            rests[n] = rest
        else:
            ended.append(n)
            bodies.add(body_id)
        books.leave(row.place, items, rows_gone=int(not rest))
        books.delete(row.place.queue, items, row.write)
    await con.rows.shrink(rests)
    await con.rows.delete(ended)
    await con.rows.drop_bodies(bodies)
