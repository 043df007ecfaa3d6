"""Which steps wait until PostgreSQL has their commit on disk."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.ports.tiers import RowOutcome
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.connection import Connection, Work
from tests.conformance.cold_stores import acquire, new_row, part_of, put
from tests.conformance.postgres_stores import PostgresStores

LOCK = b"L" * 16


async def test_only_what_may_come_again_is_committed_without_a_sync(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = PostgresStores(bridge)
    await stores.cold.open()
    commits: list[str] = []
    cold, database = stores.cold, stores.cold._db
    write = database.write

    async def noting(work: Work[object], **given: Any) -> object:
        async def noted(con: Connection) -> object:
            commits.append(await con.fetchval("SHOW synchronous_commit"))
            return await work(con)

        return await write(noted, **given)

    monkeypatch.setattr(database, "write", noting)
    row = new_row(4)
    steps: list[tuple[str, Callable[[], Awaitable[object]], list[str]]] = [
        ("put", lambda: put(stores, row), ["on", "on"]),
        ("acquire", lambda: acquire(stores), ["off"]),
        ("renew", lambda: cold.renew([LOCK], 1.0), ["off"]),
        ("settle", lambda: cold.settle([RowOutcome(row.row, LOCK, 0b1)]), ["off"]),
        (
            "settle durably",
            lambda: cold.settle([RowOutcome(row.row, LOCK, 0b1000)], is_durable=True),
            ["on"],
        ),
        (
            "move",
            lambda: cold.settle([RowOutcome(row.row, LOCK, 0, (part_of(row, 0b10),), 0b10)]),
            ["on"],
        ),
        ("claim", lambda: cold.claim("q", "reader", 0, 10), ["on"]),
        ("acknowledge", lambda: cold.claim("q", "reader", 1, 0), ["on"]),
        ("drop", lambda: cold.drop_stream("q", "reader"), ["on"]),
    ]
    try:
        for name, step, expected in steps:
            await step()
            assert commits == expected, name
            commits.clear()
    finally:
        monkeypatch.undo()
        await stores.drop()
