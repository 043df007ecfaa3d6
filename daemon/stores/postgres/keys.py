"""The table of unique keys in PostgreSQL: who has one, and where that item is.

Nothing here decides (daemon/stores/postgres/offers.py does, with actors/keys/arbiter.py). Whoever
decides has locked the keys that are there, and the rows of their items. A key that somebody else
takes meanwhile is noticed when it is taken: then the whole step is taken again, and sees it.

Outcomes are about places in bodies, so that keys are let go by those, many bodies at once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from actors.keys.arbiter import Known, item_refs
from actors.model.keys import Holder, ItemRef, Phase
from actors.model.slices import indexes, lowest_bit
from daemon.stores.cold.books import Place
from daemon.stores.cold.keyed import Held, KeyedItem, KeyedRow, Released, Taking, phase_of, placed
from daemon.stores.cold.rows import pack_bits, unpack_bits
from daemon.stores.cold.text import from_text
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.errors import Again
from daemon.stores.postgres.rows import NOW, drop_bodies
from forebay.errors import BadRun
from forebay.ids import unpack_item_id
from forebay.run import IDS, KEYS, Run

FORGOTTEN_MAX: Final = 2000
"""So many keys are forgotten in one transaction."""
OFFERED_MAX: Final = 262_144
"""So many runs of the whole fleet are remembered."""


class Taken:
    """Keys that items get in one step, and where each of those items is."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, int, int, int]] = []
        """A key, a number in `homes`, the item's number in its run and its place in its body."""
        self.homes: dict[tuple[bytes, bytes], int] = {}
        """Runs that items are named by and bodies that they are in, numbered from 1: few, so that
        their ids go to the server once and not with each key."""

    def add(
        self, run: Run, keys: Mapping[bytes, int], body_id: bytes, places: Mapping[int, int]
    ) -> None:
        """Items of a run, by their numbers there; `places`: of those that have others in the
        body."""
        if run.head.flags & IDS or places:
            refs = item_refs(run)
            self.rows += [
                (key, self._home(refs[i].run_id, body_id), refs[i].number, places.get(i, i))
                for key, i in keys.items()
            ]
        else:
            home = self._home(run.head.run_id, body_id)
            self.rows += [(key, home, index, index) for key, index in keys.items()]

    def _home(self, run_id: bytes, body_id: bytes) -> int:
        return self.homes.setdefault((run_id, body_id), len(self.homes) + 1)


class KeyTaken(Again):
    """A key that was to be taken is somebody's."""

    def __init__(self) -> None:
        super().__init__("a key is taken already", is_lost=False, is_unknown=False)


class PostgresKeys:
    """`KeyTable` for the steps."""

    def __init__(self, con: Connection, now_ms: int | None) -> None:
        self._con = con
        self._now_ms = now_ms

    async def find(
        self, queue: str, keys: Collection[bytes], *, with_rows: bool, locks: bool = True
    ) -> dict[bytes, Held]:
        return await find(self._con, queue, keys, with_rows=with_rows, locks=locks)

    async def take(self, queue: str, takings: Sequence[Taking]) -> None:
        taken = Taken()
        for one in takings:
            taken.add(one.run, one.keys, one.body_id, one.places)
        await take(self._con, queue, taken)

    async def let_go(self, ended: Sequence[Released]) -> None:
        await let_go(self._con, ended, self._now_ms)

    async def follow(self, run: Run, bits: int) -> None:
        await follow(self._con, run, bits)

    async def release(self, queue: str, held: Collection[Held]) -> None:
        await release(self._con, queue, held)

    async def forget(self) -> int:
        done = await self._con.execute(FORGET, self._now_ms, FORGOTTEN_MAX)
        await self._con.execute(FORGET_OFFERED, OFFERED_MAX, FORGOTTEN_MAX)
        return int(done.rpartition(" ")[2])


async def now(con: Connection, now_ms: int | None) -> int:
    return int(await con.fetchval(f"SELECT {NOW}", now_ms))


async def find(
    con: Connection, queue: str, keys: Collection[bytes], *, with_rows: bool, locks: bool = True
) -> dict[bytes, Held]:
    """Those of the keys that have a row. Without rows, who is not done seems to wait."""
    if not keys:
        return {}
    lock = " FOR UPDATE" if locks else ""
    found: dict[bytes, Held] = {}
    for key, run_id, item, body_id, place, until in await con.fetch(
        SELECT_KEYS + lock, queue, sorted(keys)
    ):
        phase: Phase = "waiting" if until is None else "done"
        holder = Holder(ItemRef(run_id, item), phase, until)
        found[key] = Known(holder, KeyedItem(key, body_id, place))
    if not (with_rows and found):
        return found
    alive = sorted({one.where.body_id for one in found.values() if one.holder.until_ms is None})
    rows: dict[bytes, list[KeyedRow]] = {}
    for body_id, *columns in await con.fetch(SELECT_ROWS + lock, alive):
        rows.setdefault(body_id, []).append(_row(queue, columns))
    return {key: placed(held, rows.get(held.where.body_id, ())) for key, held in found.items()}


async def take(con: Connection, queue: str, taken: Taken) -> None:
    """These keys, which nobody has, belong to these items from now on."""
    if not taken.rows:
        return
    run_ids, body_ids = zip(*taken.homes, strict=True)
    # In order, so that two that take the same keys do not wait for each other.
    keys, homes, items, places = zip(*sorted(taken.rows), strict=True)
    done = await con.execute(TAKE, queue, run_ids, body_ids, keys, homes, items, places)
    if int(done.rpartition(" ")[2]) != len(keys):
        raise KeyTaken


async def let_go(con: Connection, ended: Sequence[Released], now_ms: int | None) -> None:
    """Items have ended: their keys are free, at once or then."""
    at_once = [one for one in ended if not one.window_ms]
    later = [one for one in ended if one.window_ms]
    if at_once:
        await con.execute(
            LET_GO, [one.body_id for one in at_once], [pack_bits(one.bits) for one in at_once]
        )
    if later:
        await con.execute(
            KEEP_A_WHILE,
            now_ms,
            [one.body_id for one in later],
            [pack_bits(one.bits) for one in later],
            [one.window_ms for one in later],
        )


async def follow(con: Connection, run: Run, bits: int) -> None:
    """These items of a run have come from another body: their keys are where they are."""
    head = run.head
    if not (head.flags & KEYS and head.flags & IDS):
        return
    try:
        keys, ids = run.keys(), run.packed_ids()
        items = {keys[i]: (i, *unpack_item_id(ids[i])) for i in indexes(bits) if keys[i]}
    except (BadRun, ValueError):
        # Whoever acquires it sets it aside; the keys stay taken.
        return
    if items:
        ordered = sorted(items)
        await con.execute(
            FOLLOW,
            head.queue,
            head.run_id,
            ordered,
            [items[key][0] for key in ordered],
            [items[key][1] for key in ordered],
            [items[key][2] for key in ordered],
        )


async def void(con: Connection, replaced: Sequence[Held], books: SharedBooks) -> None:
    """Deletes items that wait; whoever replaces them takes their keys."""
    rows: dict[int, tuple[KeyedRow, bytes]] = {}
    gone: dict[int, int] = {}
    for held in replaced:
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
    await shrink(con, rests)
    if ended:
        await con.execute("DELETE FROM runs WHERE n = ANY ($1)", ended)
        await drop_bodies(con, bodies)


async def shrink(con: Connection, rests: dict[int, int]) -> None:
    """Rows that keep some of their items, by number."""
    if rests:
        await con.execute(
            SHRINK,
            list(rests),
            [pack_bits(bits) for bits in rests.values()],
            [bits.bit_count() for bits in rests.values()],
            [lowest_bit(bits) for bits in rests.values()],
        )


async def release(con: Connection, queue: str, held: Collection[Held]) -> None:
    """Their keys are nobody's."""
    if held:
        await con.execute(DELETE_KEYS, queue, [one.where.key for one in held])


def _row(queue: str, columns: Sequence[Any]) -> KeyedRow:
    n, bits, flow, action, write, state, is_locked, due_ms, attempt = columns
    place = Place(queue, from_text(flow), from_text(action))
    phase = phase_of(state, is_locked=is_locked)
    return KeyedRow(n, unpack_bits(bits), place, write, phase, due_ms, attempt)


_IS_AMONG: Final = """keys.body_id = gone.body_id AND keys.until IS NULL
    AND CASE WHEN keys.place < 8 * length(gone.bits)
        THEN get_bit(gone.bits, keys.place) = 1 ELSE false END"""
SELECT_KEYS: Final = """SELECT key, run_id, item, body_id, place, until FROM keys
    WHERE queue = $1 AND key = ANY ($2) ORDER BY key"""
SELECT_ROWS: Final = """SELECT body_id, n, bits, flow, action, write_id, state,
    lock_uuid IS NOT NULL, due_ms, attempt FROM runs
    WHERE body_id = ANY ($1) AND state <> 'STORED' ORDER BY n"""
TAKE: Final = """INSERT INTO keys (queue, key, run_id, item, body_id, place)
    SELECT $1, key, ($2::bytea[])[home], item, ($3::bytea[])[home], place
    FROM unnest($4::bytea[], $5::integer[], $6::smallint[], $7::smallint[])
        AS taken (key, home, item, place)
    ON CONFLICT DO NOTHING"""
LET_GO: Final = f"""DELETE FROM keys USING unnest($1::bytea[], $2::bytea[]) AS gone (body_id, bits)
    WHERE {_IS_AMONG}"""
KEEP_A_WHILE: Final = f"""UPDATE keys SET until = {NOW} + gone.window_ms
    FROM unnest($2::bytea[], $3::bytea[], $4::bigint[]) AS gone (body_id, bits, window_ms)
    WHERE {_IS_AMONG}"""
FOLLOW: Final = """UPDATE keys SET body_id = $2, place = moved.place
    FROM unnest($3::bytea[], $4::integer[], $5::bytea[], $6::integer[])
        AS moved (key, place, run_id, item)
    WHERE keys.queue = $1 AND keys.key = moved.key AND keys.run_id = moved.run_id
        AND keys.item = moved.item AND keys.until IS NULL"""
SHRINK: Final = """UPDATE runs SET bits = rest.bits, count = rest.count, first_item = rest.first
    FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::integer[])
        AS rest (n, bits, count, first)
    WHERE runs.n = rest.n"""
DELETE_KEYS: Final = "DELETE FROM keys WHERE queue = $1 AND key = ANY ($2)"
FORGET: Final = f"""DELETE FROM keys WHERE (queue, key) IN (
    SELECT queue, key FROM keys WHERE until <= {NOW} ORDER BY until LIMIT $2
    FOR UPDATE SKIP LOCKED)"""
FORGET_OFFERED: Final = """DELETE FROM offered WHERE n IN (
    SELECT n FROM offered WHERE n <= (SELECT max(n) FROM offered) - $1 ORDER BY n LIMIT $2
    FOR UPDATE SKIP LOCKED)"""
HAS_KEYS: Final = """EXISTS (
    SELECT 1 FROM keys WHERE keys.body_id = runs.body_id AND keys.until IS NULL)"""
"""Of a row of `runs`, or one that shares its body."""
