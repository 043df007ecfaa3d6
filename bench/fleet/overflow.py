"""Overflow into PostgreSQL, beside row-per-item inserts of the same data.

Both put the same items into the same server, on the same disk, with fsync and synchronous commits,
one transaction for 16,000 items. forebay stores runs of 1,000, invisible, and confirms them, as a
hand-over does: two transactions. The peer has the plain table of a job queue (id, queue, priority,
time, payload, and the index that such a queue is read by), filled by `INSERT … SELECT unnest`,
which COPY does not beat by much. Rounds take turns.

    .venv/bin/python -m bench.fleet.overflow
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import asyncpg
import trio
from rich.console import Console

from actors.model.slices import item_bits
from actors.ports.tiers import NewRow
from bench.figures import Goal, Row, Samples
from bench.items import crm_runs
from bench.table import print_table
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from forebay.ids import new_run_id
from forebay.run import encode_run, read_head
from tests.servers.postgres import postgres_server

RUN_ITEMS: Final = 1000
RUNS_AT_ONCE: Final = 16
BATCHES: Final = 12
ROUNDS: Final = 3
GOAL: Final = 5.0
TIMEOUT_S: Final = 120.0

TABLE: Final = """CREATE TABLE items (
    id uuid PRIMARY KEY, queue text NOT NULL, priority smallint NOT NULL,
    scheduled_at timestamptz NOT NULL, payload bytea NOT NULL);
CREATE INDEX items_due ON items (queue, priority, scheduled_at)"""
INSERT: Final = """INSERT INTO items
    SELECT gen_random_uuid(), 'crm', 5, now(), payload FROM unnest($1::bytea[]) AS payload"""


async def measure(url: str, rounds: int = ROUNDS, batches: int = BATCHES) -> Row:
    payloads = crm_runs(RUNS_AT_ONCE, RUN_ITEMS)
    ours: list[float] = []
    peers: list[float] = []
    async with Bridge() as bridge:
        cold = PostgresCold(PostgresSettings(url, TIMEOUT_S), b"the bench's own.", bridge)
        await cold.open()
        await bridge.run(lambda: _once(url, TABLE), TIMEOUT_S)
        for _ in range(rounds):
            ours.append(await _hand_over(cold, payloads, batches))
            peers.append(await bridge.run(lambda: _insert_items(url, payloads, batches), TIMEOUT_S))
        await cold.close()
    return Row(
        "P",
        f"overflow into PostgreSQL, runs of {RUN_ITEMS:,}, stored and confirmed",
        "items/s",
        Samples.of(ours),
        "a row for each item, unnest",
        Samples.of(peers),
        Goal(ratio_min=GOAL),
    )


async def _hand_over(
    cold: PostgresCold, payloads: Sequence[Sequence[bytes]], batches: int
) -> float:
    """Items a second. The runs come encoded, as they do from a Spark task."""
    made = [[_row(run) for run in payloads] for _ in range(batches)]

    async def work() -> None:
        for rows in made:
            await cold.store(rows)
            await cold.confirm([row.row for row in rows])

    began = time.perf_counter()
    await work()
    return batches * RUNS_AT_ONCE * RUN_ITEMS / (time.perf_counter() - began)


async def _insert_items(url: str, payloads: Sequence[Sequence[bytes]], batches: int) -> float:
    items = [payload for run in payloads for payload in run]
    con: Any = await asyncpg.connect(url)
    try:
        await con.execute(INSERT, items[:1])
        began = time.perf_counter()
        for _ in range(batches):
            await con.execute(INSERT, items)
        return batches * len(items) / (time.perf_counter() - began)
    finally:
        await con.close()


def _row(payloads: Sequence[bytes]) -> NewRow:
    data = encode_run(payloads, queue="crm", run_id=new_run_id())
    head = read_head(data)
    return NewRow(new_run_id(), head, data, item_bits(0, head.count))


async def _once(url: str, sql: str) -> None:
    con: Any = await asyncpg.connect(url)
    try:
        await con.execute(sql)
    finally:
        await con.close()


def main(measured: Callable[[str], Any] = measure) -> int:
    with postgres_server(is_durable=True) as server:
        row: Row = trio.run(measured, server.url())
    print_table("fleet", [row], Console())
    return 0 if row.is_met else 1


if __name__ == "__main__":
    sys.exit(main())
