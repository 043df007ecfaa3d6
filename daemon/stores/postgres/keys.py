"""The table of unique keys in PostgreSQL: who has one, and where that item is.

Nothing here decides (daemon/stores/cold/offers.py does, with actors/keys/arbiter.py). Whoever
decides has locked the keys that are there, and the rows of their items. A key that another step
takes meanwhile is noticed when it is taken: then the whole step is run again, and sees it.

Outcomes are about places in bodies, so that keys are let go by those, many bodies at once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from actors.keys.arbiter import Known, item_refs
from actors.model.keys import Holder, ItemRef, Phase
from daemon.stores.cold.books import Place
from daemon.stores.cold.connection import RunAgain
from daemon.stores.cold.keyed import (
    FORGOTTEN_MAX,
    Answer,
    Held,
    KeyedItem,
    KeyedRow,
    Moved,
    Released,
    Taking,
    phase_of,
    placed,
)
from daemon.stores.cold.rows import pack_bits, unpack_bits
from daemon.stores.cold.text import from_text
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import NOW
from forebay.run import IDS, Run

OFFERED_MAX: Final = 262_144
"""Of the whole fleet."""


class _Taken:
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


class PostgresKeys:
    """`KeyTable` for the steps."""

    offered_max = OFFERED_MAX

    def __init__(self, con: Connection, now_ms: int | None) -> None:
        self._con = con
        self._now_ms = now_ms

    async def find(
        self, queue: str, keys: Collection[bytes], *, with_rows: bool, locks: bool = True
    ) -> dict[bytes, Held]:
        if not keys:
            return {}
        lock = " FOR UPDATE" if locks else ""
        found: dict[bytes, Held] = {}
        for key, run_id, item, body_id, place, until in await self._con.fetch(
            SELECT_KEYS + lock, queue, sorted(keys)
        ):
            phase: Phase = "waiting" if until is None else "done"
            holder = Holder(ItemRef(run_id, item), phase, until)
            found[key] = Known(holder, KeyedItem(key, body_id, place))
        if not (with_rows and found):
            return found
        alive = sorted({one.where.body_id for one in found.values() if one.holder.until_ms is None})
        rows: dict[bytes, list[KeyedRow]] = {}
        for body_id, *columns in await self._con.fetch(SELECT_ROWS + lock, alive):
            rows.setdefault(body_id, []).append(_row(queue, columns))
        return {key: placed(held, rows.get(held.where.body_id, ())) for key, held in found.items()}

    async def take(self, queue: str, takings: Sequence[Taking]) -> None:
        taken = _Taken()
        for one in takings:
            taken.add(one.run, one.keys, one.body_id, one.places)
        if not taken.rows:
            return
        run_ids, body_ids = zip(*taken.homes, strict=True)
        # In order, so that two that take the same keys do not wait for each other.
        keys, homes, items, places = zip(*sorted(taken.rows), strict=True)
        done = await self._con.execute(TAKE, queue, run_ids, body_ids, keys, homes, items, places)
        if _count(done) != len(keys):
            raise RunAgain("a key is taken already")

    async def let_go(self, ended: Sequence[Released]) -> None:
        at_once = [one for one in ended if not one.window_ms]
        later = [one for one in ended if one.window_ms]
        if at_once:
            await self._con.execute(
                LET_GO, [one.body_id for one in at_once], [pack_bits(one.bits) for one in at_once]
            )
        if later:
            await self._con.execute(
                KEEP_A_WHILE,
                self._now_ms,
                [one.body_id for one in later],
                [pack_bits(one.bits) for one in later],
                [one.window_ms for one in later],
            )

    async def follow(self, moved: Sequence[Moved]) -> None:
        if not moved:
            return
        queues, keys, items, bodies, places = zip(*sorted(moved), strict=True)
        run_ids, numbers = zip(*items, strict=True)
        await self._con.execute(FOLLOW, queues, keys, run_ids, numbers, bodies, places)

    async def release(self, queue: str, held: Collection[Held]) -> None:
        if held:
            await self._con.execute(DELETE_KEYS, queue, [one.where.key for one in held])

    async def remember(self, answers: Sequence[Answer]) -> None:
        if not answers:
            return
        run_ids, outcomes, fingerprints = zip(*answers, strict=True)
        done = await self._con.execute(REMEMBER, run_ids, outcomes, fingerprints)
        if _count(done) != len(answers):
            raise RunAgain("a run was offered twice at once")

    async def forget(self) -> int:
        return _count(await self._con.execute(FORGET, self._now_ms, FORGOTTEN_MAX))


def _count(done: str) -> int:
    """How many rows a statement has changed."""
    return int(done.rpartition(" ")[2])


def _row(queue: str, columns: Sequence[Any]) -> KeyedRow:
    n, bits, flow, action, write, state, is_locked, due_ms, attempt, size = columns
    place = Place(queue, from_text(flow), from_text(action))
    phase = phase_of(state, is_locked=is_locked)
    return KeyedRow(n, unpack_bits(bits), place, write, phase, due_ms, attempt, size)


_IS_AMONG: Final = """keys.body_id = gone.body_id AND keys.until IS NULL
    AND CASE WHEN keys.place < 8 * length(gone.bits)
        THEN get_bit(gone.bits, keys.place) = 1 ELSE false END"""
SELECT_KEYS: Final = """SELECT key, run_id, item, body_id, place, until FROM keys
    WHERE queue = $1 AND key = ANY ($2) ORDER BY key"""
SELECT_ROWS: Final = """SELECT body_id, n, bits, flow, action, write_id, state,
    lock_uuid IS NOT NULL, due_ms, attempt, size FROM runs
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
FOLLOW: Final = """UPDATE keys SET body_id = moved.body_id, place = moved.place
    FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::integer[], $5::bytea[], $6::integer[])
        AS moved (queue, key, run_id, item, body_id, place)
    WHERE keys.queue = moved.queue AND keys.key = moved.key AND keys.run_id = moved.run_id
        AND keys.item = moved.item AND keys.until IS NULL"""
DELETE_KEYS: Final = "DELETE FROM keys WHERE queue = $1 AND key = ANY ($2)"
FORGET: Final = f"""DELETE FROM keys WHERE (queue, key) IN (
    SELECT queue, key FROM keys WHERE until <= {NOW} ORDER BY until LIMIT $2
    FOR UPDATE SKIP LOCKED)"""
REMEMBER: Final = """INSERT INTO offered (run_id, outcomes, fingerprint)
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])
        AS given (run_id, outcomes, fingerprint)
    ORDER BY run_id ON CONFLICT DO NOTHING"""
