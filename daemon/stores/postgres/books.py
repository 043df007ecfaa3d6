"""The books of the cold tier in PostgreSQL: what a transaction has changed, in one statement.

What is counted, and when, is daemon/stores/cold/books.py's. Here each daemon has counters of its
own, so that transactions of different daemons never wait for each other's; whoever reads adds them
up. A single daemon's counter may be negative: one daemon takes items, another delivers them.

The counters of a flow that has nothing here any more are forgotten now and then (`fold`).
"""

from collections.abc import Sequence
from typing import Final

from actors.model.books import ColdReceipt
from actors.ports.tiers import ColdTotals, FlowCount
from daemon.stores.cold.books import FLOWS, RECEIPT, TOTALS, Books
from daemon.stores.cold.text import from_text, to_text
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.schema import HELD


class SharedBooks(Books):
    """The changes of one transaction of one daemon."""

    async def record(self, con: Connection, daemon: bytes) -> None:
        """At the end of the transaction: from here on others of this daemon's wait."""
        await record(con, daemon, self)


async def record(con: Connection, daemon: bytes, books: Books) -> set[bytes]:
    """At the end of the transaction: from here on others of this daemon's wait. Returns the jobs of
    triggers whose receipts have changed."""
    totals = [(queue, c) for queue, c in sorted(books.totals.items()) if any(c.values())]
    flows = [
        (place, c) for place, c in sorted(books.flows.items()) if any(c[name] for name in FLOWS)
    ]
    writes = sorted(
        books.writes_taken | {write for write, c in books.receipts.items() if any(c.values())}
    )
    if not (totals or flows or writes):
        return set()
    noted = await con.fetch(
        RECORD,
        daemon,
        [queue for queue, _ in totals],
        *([c[name] for _, c in totals] for name in TOTALS),
        [place.queue for place, _ in flows],
        [to_text(place.flow) for place, _ in flows],
        [to_text(place.action) for place, _ in flows],
        *([c[name] for _, c in flows] for name in FLOWS),
        writes,
        [write in books.writes_taken for write in writes],
        *([books.receipts[write][name] for write in writes] for name in RECEIPT),
    )
    return {write for write, is_job in noted if is_job}


async def read_totals(con: Connection, daemon: bytes) -> dict[str, ColdTotals]:
    rows = await con.fetch(SELECT_TOTALS, daemon)
    return {row["queue"]: ColdTotals(**dict(list(row.items())[1:])) for row in rows}


async def read_flows(con: Connection) -> Sequence[FlowCount]:
    rows = await con.fetch(SELECT_FLOWS)
    return [
        FlowCount(queue, from_text(flow), from_text(action), items, dead)
        for queue, flow, action, items, dead in rows
    ]


async def read_oldest(con: Connection) -> dict[tuple[str, str, str], int]:
    """One look into the index for each flow that holds anything."""
    rows = await con.fetch(SELECT_OLDEST)
    return {
        (queue, from_text(flow), from_text(action)): at
        for queue, flow, action, at in rows
        if at is not None
    }


async def read_receipt(con: Connection, write: bytes) -> ColdReceipt:
    return ColdReceipt(*await con.fetchrow(SELECT_RECEIPT, write))


async def forget_receipts(con: Connection, writes: Sequence[bytes]) -> None:
    await con.execute("DELETE FROM receipts WHERE write_id = ANY ($1)", list(writes))


async def fold(con: Connection) -> None:
    """Forgets flows that have nothing here. A counter that somebody changes meanwhile is not lost:
    what it was when it was removed is kept, as nobody's."""
    await con.execute(FOLD)
    await con.execute("DELETE FROM flows WHERE daemon = '' AND (items, runs, dead) = (0, 0, 0)")


def _arrays(first: int, *types: str) -> str:
    return ", ".join(f"${number}::{type_}[]" for number, type_ in enumerate(types, first))


def _adding(table: str, names: Sequence[str]) -> str:
    return ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in names)


_COUNTS: Final = ("bigint",)
_FLOW_COLUMNS: Final = ("items", "runs", "dead")
_AT_FLOWS: Final = 3 + len(TOTALS)
_AT_RECEIPTS: Final = _AT_FLOWS + 3 + len(FLOWS)

RECORD: Final = f"""WITH of_queues AS (
        INSERT INTO totals (daemon, queue, {", ".join(TOTALS)})
        SELECT $1, * FROM unnest({_arrays(2, "text", *_COUNTS * len(TOTALS))})
        ON CONFLICT (queue, daemon) DO UPDATE SET {_adding("totals", TOTALS)}
    ), of_flows AS (
        INSERT INTO flows (daemon, queue, flow, action, {", ".join(_FLOW_COLUMNS)})
        SELECT $1, * FROM unnest({_arrays(_AT_FLOWS, *("text",) * 3, *_COUNTS * len(FLOWS))})
        ON CONFLICT (queue, flow, action, daemon) DO UPDATE SET {_adding("flows", _FLOW_COLUMNS)}
    ) INSERT INTO receipts (daemon, write_id, {", ".join(RECEIPT)})
    SELECT $1, write_id, {", ".join(RECEIPT)}
    FROM unnest({_arrays(_AT_RECEIPTS, "bytea", "boolean", *_COUNTS * len(RECEIPT))})
        AS change (write_id, is_taken, {", ".join(RECEIPT)})
    WHERE is_taken
        OR EXISTS (SELECT 1 FROM receipts AS known WHERE known.write_id = change.write_id)
    ON CONFLICT (write_id, daemon) DO UPDATE SET {_adding("receipts", RECEIPT)}
    RETURNING write_id, EXISTS (SELECT 1 FROM trigger_jobs WHERE run_id = write_id)"""

SELECT_TOTALS: Final = f"""SELECT queue,
    {", ".join(f"sum({name})::bigint AS {name}" for name in TOTALS)},
    coalesce(sum(taken) FILTER (WHERE daemon = $1), 0)::bigint AS taken_from_here
    FROM totals GROUP BY queue"""
SELECT_FLOWS: Final = """SELECT queue, flow, action, sum(items)::bigint, sum(dead)::bigint
    FROM flows GROUP BY queue, flow, action
    HAVING sum(items) <> 0 OR sum(runs) <> 0 OR sum(dead) <> 0"""
SELECT_OLDEST: Final = f"""SELECT queue, flow, action, (
        SELECT created_at FROM runs WHERE runs.queue = holding.queue
        AND runs.flow = holding.flow AND runs.action = holding.action
        AND {HELD} ORDER BY created_at LIMIT 1
    ) FROM (
        SELECT queue, flow, action FROM flows GROUP BY queue, flow, action HAVING sum(items) > 0
    ) AS holding"""
SELECT_RECEIPT: Final = f"""SELECT
    {", ".join(f"coalesce(sum({name}), 0)::bigint" for name in RECEIPT)}
    FROM receipts WHERE write_id = $1"""
FOLD: Final = f"""WITH gone AS (
        DELETE FROM flows WHERE daemon <> '' AND (queue, flow, action) IN (
            SELECT queue, flow, action FROM flows GROUP BY queue, flow, action
            HAVING (sum(items), sum(runs), sum(dead)) = (0, 0, 0)
        ) RETURNING queue, flow, action, items, runs, dead
    ) INSERT INTO flows (daemon, queue, flow, action, {", ".join(_FLOW_COLUMNS)})
    SELECT '', queue, flow, action, sum(items), sum(runs), sum(dead)
    FROM gone GROUP BY queue, flow, action
    HAVING (sum(items), sum(runs), sum(dead)) <> (0, 0, 0)
    ON CONFLICT (queue, flow, action, daemon) DO UPDATE SET {_adding("flows", _FLOW_COLUMNS)}"""
