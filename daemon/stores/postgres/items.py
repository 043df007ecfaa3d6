"""Single items of the cold tier in PostgreSQL: found by their id, looked at, deleted, changed.

As in daemon/stores/sqlite/items.py. A change locks the row first: of two daemons that change the
same item one finds it changed.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from actors.control.item_find import bit_of
from actors.model.finished import Keeps, keep_nothing
from actors.model.moves import ColdMove, guard
from actors.model.slices import lowest_bit
from actors.ports.tiers import ColdPart, ColdScan, ColdSight, NewRow
from actors.ports.trigger_jobs import is_spent
from daemon.stores.cold.books import Place
from daemon.stores.cold.history import read_said
from daemon.stores.cold.keyed import Released
from daemon.stores.cold.rows import (
    BadRow,
    Bodies,
    Unpacked,
    own_bits,
    pack_bits,
    place_of,
    read_errors,
    unpack_bits,
)
from daemon.stores.cold.text import from_text
from daemon.stores.postgres.books import SharedBooks
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.history import Ended, note_ended
from daemon.stores.postgres.keys import follow, let_go
from daemon.stores.postgres.rows import drop_bodies, insert_rows, lock_bodies, read_bodies
from daemon.stores.sqlite.items import FOUND_MAX, SCANNED_MAX, liveliest

_PAST_END: Final = 2**63 - 1


class PostgresItems:
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

    async def find(self, run_id: bytes, index: int) -> list[ColdSight]:
        return await self._db.read(lambda con: _find(con, run_id, index))

    async def scan(self, queue: str | None, after: int, rows_max: int, bytes_max: int) -> ColdScan:
        limits = (rows_max, bytes_max)
        return await self._db.read(lambda con: _scan(con, SELECT_ROWS, queue, after, *limits))

    async def scan_history(
        self, queue: str | None, after: int, rows_max: int, bytes_max: int
    ) -> ColdScan:
        start, limits = after or _PAST_END, (rows_max, bytes_max)
        return await self._db.read(lambda con: _scan(con, SELECT_HISTORY, queue, start, *limits))

    async def delete(self, row: bytes, bits: int, lock: bytes | None) -> bool:
        return await self._void(row, bits, lock, None)

    async def delete_all(self, parts: Sequence[ColdPart]) -> list[bool]:
        async def work(con: Connection) -> list[bool]:
            # In one order: two that delete the same rows would wait for each other.
            done = [False] * len(parts)
            for at in sorted(range(len(parts)), key=lambda at: parts[at].row):
                done[at] = await self._void_in(con, *parts[at], None, keep_nothing)
            return done

        return await self._db.write(work, is_repeatable=False)

    async def purge(self, queue: str, rows_max: int) -> int:
        return await self._db.write(
            lambda con: self._purge_in(con, queue, rows_max), is_repeatable=False
        )

    async def _purge_in(self, con: Connection, queue: str, rows_max: int) -> int:
        books, items = SharedBooks(), 0
        rows: list[Any] = []
        for sql in (SELECT_DUE, SELECT_LATER):
            rows += await con.fetch(sql, queue, rows_max - len(rows))
        await con.execute("DELETE FROM runs WHERE n = ANY ($1)", [row["n"] for row in rows])
        ended = [Released(row["body_id"], unpack_bits(row["bits"])) for row in rows]
        await let_go(con, ended, self._now_ms())
        for row in rows:
            place = Place(queue, from_text(row["flow"]), from_text(row["action"]))
            books.leave(place, row["count"], rows_gone=1)
            books.delete(queue, row["count"], row["write_id"])
            items += row["count"]
        await drop_bodies(con, (row["body_id"] for row in rows))
        await books.record(con, self._daemon)
        return items

    async def change(self, row: bytes, bits: int, lock: bytes | None, new: NewRow) -> bool:
        return await self._void(row, bits, lock, new)

    async def _void(self, row: bytes, bits: int, lock: bytes | None, new: NewRow | None) -> bool:
        """Not repeated when nobody knows what has become of it: it would say that nothing has."""

        def after(is_done: bool) -> str | None:
            return self._notices({new.head.queue}) if is_done and new is not None else None

        return await self._db.write(
            lambda con: self._void_in(con, row, bits, lock, new, self.keeps),
            is_repeatable=False,
            after=after,
        )

    async def _void_in(
        self,
        con: Connection,
        row: bytes,
        bits: int,
        lock: bytes | None,
        new: NewRow | None,
        keeps: Keeps,
    ) -> bool:
        found = await con.fetchrow(SELECT_HELD, row)
        if found is None:
            return False
        n, body_id, packed, queue, flow, action, write, size, held_by = found
        here = unpack_bits(packed)
        if (held_by is not None and held_by != lock) or not bits or bits & ~here:
            return False
        if new is not None and new.head.queue != queue:
            raise ValueError(f"an item of {queue} moves to {new.head.queue}")
        await lock_bodies(con, [body_id])
        now_ms, keep = self._now_ms(), keeps(queue)
        rest, items, books = here & ~bits, bits.bit_count(), SharedBooks()
        if new is None and keep != "none":
            await note_ended(con, [Ended(n, body_id, bits, size, "deleted", keep)], now_ms)
        if rest:
            await con.execute(SHRINK, n, pack_bits(rest), rest.bit_count(), lowest_bit(rest))
        else:
            await con.execute("DELETE FROM runs WHERE n = $1", n)
        place = Place(queue, from_text(flow), from_text(action))
        books.leave(place, items, rows_gone=int(not rest))
        if new is None:
            books.delete(queue, items, write)
            await let_go(con, [Released(body_id, bits)], now_ms)
        else:
            runs = Unpacked()
            if not await insert_rows(con, [new], self._daemon, now_ms, runs, is_stored=False):
                raise ValueError(f"there is a row {new.row.hex()} already")
            books.enter(place_of(new.head), items, runs.write(new.head), is_dead=new.is_dead)
            await follow(con, runs.run(new.head, new.data), new.bits)
        await drop_bodies(con, [body_id])
        await books.record(con, self._daemon)
        return True


async def _find(con: Connection, run_id: bytes, index: int) -> list[ColdSight]:
    bodies = {run_id, *(row["body_id"] for row in await con.fetch(SELECT_ALIASES, run_id))}
    read = await read_bodies(con, bodies)
    bits: dict[bytes, int] = {}
    for body_id in bodies:
        with suppress(BadRow):
            if bit := bit_of(*read.get(body_id), run_id, index):
                bits[body_id] = bit
    found: list[ColdSight] = []
    for sql in (SELECT_BY_BODY, SELECT_PAST_BY_BODY):
        for row in await con.fetch(sql, sorted(bits)):
            bit = bits[row["body_id"]]
            if unpack_bits(row["bits"]) & bit:
                with suppress(BadRow):
                    found.append(replace(_sight(row, read), bits=bit))
    found.sort(key=liveliest)
    return found[:FOUND_MAX]


async def _scan(
    con: Connection, sql: str, queue: str | None, after: int, rows_max: int, bytes_max: int
) -> ColdScan:
    """One stretch, past rows that are not wanted."""
    stretch = await con.fetch(sql, queue, after, SCANNED_MAX)
    taken, rest = _fitting(stretch, rows_max, bytes_max)
    read = await read_bodies(con, (row["body_id"] for row in taken))
    rows: list[ColdSight] = []
    for row in taken:
        # What cannot be read is set aside by whoever acquires it.
        with suppress(BadRow):
            rows.append(replace(_sight(row, read), place=row["n"]))
    return ColdScan(rows, rest)


def _fitting(stretch: Sequence[Any], rows_max: int, bytes_max: int) -> tuple[list[Any], int | None]:
    """Those that are wanted, as many as fit, and where to go on; None: nowhere."""
    taken: list[Any] = []
    at, room = 0, bytes_max
    for row in stretch:
        if row["is_wanted"]:
            if taken and (len(taken) == rows_max or row["size"] > room):
                return taken, at
            room -= row["size"]
            taken.append(row)
        at = row["n"]
    return taken, at if len(stretch) == SCANNED_MAX else None


def _sight(row: Any, read: Bodies) -> ColdSight:
    """BadRow if it cannot be read."""
    head, data = read.get(row["body_id"])
    return ColdSight(
        row["state"],
        head,
        data,
        own_bits(row["bits"], head),
        row["attempt"],
        row["due_ms"],
        read_errors(row["error_history"]),
        row["id"],
        row["lock_uuid"],
        row["ended_at"],
        0,
        *read_said(row["locked_by"], row["locked_at"], row["result"], row["job_id"]),
        is_spent(row["state"], row["job_id"]),
        row["changed_at"] or 0,
        row["first_due_ms"],
    )


_RUN_COLUMNS: Final = """n, size, body_id, state, bits, attempt, due_ms, error_history, id,
    lock_uuid, died_at AS ended_at, CASE WHEN state = 'CLAIMED' THEN
        (SELECT name FROM consumers WHERE consumers.n = runs.consumer) END AS locked_by,
    NULL::bigint AS locked_at, NULL AS result,
    job_id, changed_at, scheduled_at_initially AS first_due_ms"""
_PAST_COLUMNS: Final = """n, size, body_id, outcome AS state, bits, attempt, 0::bigint AS due_ms,
    error_history, ''::bytea AS id, NULL::bytea AS lock_uuid, finished_at AS ended_at,
    locked_by, locked_at, result, job_id, NULL::bigint AS changed_at,
    0::bigint AS first_due_ms"""
SELECT_ALIASES: Final = "SELECT body_id FROM aliases WHERE run_id = $1"
SELECT_BY_BODY: Final = f"""SELECT {_RUN_COLUMNS} FROM runs
    WHERE body_id = ANY ($1) AND state IN ('COLD_QUEUED', 'CLAIMED', 'FAILED')"""
SELECT_PAST_BY_BODY: Final = f"SELECT {_PAST_COLUMNS} FROM history WHERE body_id = ANY ($1)"
SELECT_ROWS: Final = f"""SELECT {_RUN_COLUMNS},
    ($1::text IS NULL OR queue = $1) AND state IN ('COLD_QUEUED', 'CLAIMED') AS is_wanted
    FROM runs WHERE n > $2 ORDER BY n LIMIT $3"""
SELECT_HISTORY: Final = f"""SELECT {_PAST_COLUMNS}, $1::text IS NULL OR queue = $1 AS is_wanted
    FROM history WHERE n < $2 ORDER BY n DESC LIMIT $3"""
_WAITING: Final = guard(ColdMove.DELETE, ColdMove.CHANGE, ColdMove.GIVE_UP)
SELECT_HELD: Final = f"""SELECT n, body_id, bits, queue, flow, action, write_id, size, lock_uuid
    FROM runs WHERE id = $1 AND {_WAITING} FOR UPDATE"""
_UNHELD: Final = """SELECT n, body_id, bits, flow, action, count, write_id FROM runs
    WHERE state = 'COLD_QUEUED' AND {} AND queue = $1 AND lock_uuid IS NULL
    LIMIT $2 FOR UPDATE SKIP LOCKED"""
SELECT_DUE: Final = _UNHELD.format("is_due")
SELECT_LATER: Final = _UNHELD.format("NOT is_due")
SHRINK: Final = "UPDATE runs SET bits = $2, count = $3, first_item = $4 WHERE n = $1"
