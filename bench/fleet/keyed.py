"""`python -m bench.fleet.keyed`: keyed runs against bare `INSERT … ON CONFLICT` of the same rows.

Runs of 1,000 items of about 300 bytes with new keys, several runs per transaction, each durable on
return; beside it, round by round, the same keys and payloads as rows of a table with a unique
index, the same number per transaction: in SQLite with the same pragmas by `executemany`, in
PostgreSQL by `unnest`. Medians of rounds. What is measured is the store; encoding the runs is not.
"""

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import asyncpg
import trio
import typer

from actors.model.keys import KeyRule, Offer
from actors.ports.tiers import ColdQueue
from bench.items import crm_runs
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from daemon.stores.sqlite.connection import CACHE_KIB, PAGE_BYTES, WAL_PAGES
from daemon.stores.sqlite.store import SqliteCold
from forebay.run import Run, encode_run, read_run
from tests.servers.postgres import postgres_server

ITEMS: Final = 1000
DAEMON: Final = bytes(16)
TIMEOUT_S: Final = 60.0
GOAL: Final = 0.8


class Batch(NamedTuple):
    """What goes into one transaction, in both forms."""

    offers: list[Offer]
    keys: list[bytes]
    payloads: list[bytes]


def batches(runs: int, at_once: int, seed: int) -> list[Batch]:
    chance = random.Random(seed)
    made: list[Batch] = []
    payloads = crm_runs(8, ITEMS)
    for start in range(0, runs, at_once):
        batch = Batch([], [], [])
        for number in range(start, min(start + at_once, runs)):
            keys = [b"customer-%012d" % chance.randrange(10**12) for _ in range(ITEMS)]
            data = encode_run(payloads[number % 8], queue="q", keys=keys)
            batch.offers.append(Offer(read_run(data)))
            batch.keys.extend(keys)
            batch.payloads.extend(payloads[number % 8])
        made.append(batch)
    return made


async def offered(cold: ColdQueue, made: Sequence[Batch]) -> None:
    cold.keep_keys(lambda _: KeyRule("ignore"))
    for batch in made:
        # Unpacked anew, as it is when it comes from the socket.
        await cold.offer([Offer(Run(one.run.head, one.run.data)) for one in batch.offers])


def bare_sqlite(path: Path, made: Sequence[Batch]) -> float:
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = WAL",
        "synchronous = FULL",
        f"cache_size = -{CACHE_KIB}",
        f"wal_autocheckpoint = {WAL_PAGES}",
        "secure_delete = OFF",
    ):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute(
        "CREATE TABLE items (n INTEGER PRIMARY KEY, queue TEXT NOT NULL, key BLOB NOT NULL, "
        "payload BLOB NOT NULL, UNIQUE (queue, key))"
    )
    began = time.perf_counter()
    for batch in made:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "INSERT INTO items (queue, key, payload) VALUES ('q', ?, ?) ON CONFLICT DO NOTHING",
            zip(batch.keys, batch.payloads, strict=True),
        )
        db.execute("COMMIT")
    took = time.perf_counter() - began
    db.close()
    return took


async def bare_postgres(url: str, made: Sequence[Batch]) -> float:
    con = await asyncpg.connect(url)
    await con.execute(
        "CREATE TABLE items (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "queue text NOT NULL, key bytea NOT NULL, payload bytea NOT NULL, UNIQUE (queue, key))"
    )
    began = time.perf_counter()
    for batch in made:
        await con.execute(
            "INSERT INTO items (queue, key, payload) SELECT 'q', * "
            "FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT DO NOTHING",
            batch.keys,
            batch.payloads,
        )
    took = time.perf_counter() - began
    await con.close()
    return took


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def sqlite_round(made: Sequence[Batch]) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        bare = bare_sqlite(Path(directory) / "bare.db", made)
        cold = SqliteCold(Path(directory) / "cold.db", TIMEOUT_S, ballast_bytes=0)
        await cold.open()
        ours = await timed(lambda: offered(cold, made))
        await cold.close()
    return ours, bare


async def postgres_round(made: Sequence[Batch]) -> tuple[float, float]:
    with postgres_server(is_durable=True) as server:
        url = server.url()
        async with Bridge() as bridge:
            bare = await bridge.run(lambda: bare_postgres(url, made), 600.0)
            cold = PostgresCold(PostgresSettings(url, TIMEOUT_S), DAEMON, bridge)
            await cold.open()
            ours = await timed(lambda: offered(cold, made))
            await cold.close()
    return ours, bare


async def measure(rounds: int, runs: int, at_once: int) -> None:
    stores = {"SQLite": sqlite_round, "PostgreSQL": postgres_round}
    items = runs * ITEMS
    for name, one_round in stores.items():
        taken = [await one_round(batches(runs, at_once, seed)) for seed in range(rounds)]
        ours = statistics.median(items / mine for mine, _ in taken)
        bare = statistics.median(items / other for _, other in taken)
        ratio = statistics.median(other / mine for mine, other in taken)
        spread = ", ".join(f"{other / mine:.2f}" for mine, other in taken)
        is_met = "met" if ratio >= GOAL else "not met"
        print(
            f"{name}: keyed {ours:,.0f} items/s, bare INSERT … ON CONFLICT {bare:,.0f}; "
            f"ratio {ratio:.2f} ({spread}), goal {GOAL}: {is_met}"
        )


def main(
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 5,
    runs: Annotated[int, typer.Option(help="Runs of 1,000 items a round.")] = 100,
    at_once: Annotated[int, typer.Option(help="Runs of one transaction.")] = 8,
) -> None:
    """Measure keyed queues."""
    trio.run(measure, rounds, runs, at_once)


if __name__ == "__main__":
    typer.run(main)
