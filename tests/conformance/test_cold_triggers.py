"""The suite of triggers, passed by SQLite and by PostgreSQL."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import trio

from actors.ports.tiers import ColdItems, ColdRow, RowOutcome
from actors.ports.trigger_jobs import Claim, Poll, TriggerStore
from daemon.stores.bridge import Bridge
from daemon.stores.cold.store import ColdStore
from daemon.stores.postgres.connection import Database
from forebay.run import Run
from tests.conformance.cold_stores import acquire, check_books, new_row, number, put
from tests.conformance.cold_triggers import LOCK, TriggerSuite, make, watch
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.sqlite_stores import SqliteStores


class SqliteTriggerStores(SqliteStores):
    @property
    def triggers(self) -> TriggerStore:
        return self.cold.triggers

    @property
    def items(self) -> ColdItems:
        return self.cold.items


class PostgresTriggerStores(PostgresStores):
    async def say(self, *statements: str) -> Any:
        """On a connection that stays."""

        async def work() -> Any:
            con = await asyncpg.connect(self.url)
            for statement in statements:
                await con.execute(statement)
            return con

        return await self._bridge.run(work, 60.0)

    async def hang_up(self, con: Any) -> None:
        async def work() -> None:
            con.terminate()

        await self._bridge.run(work, 60.0)

    @property
    def triggers(self) -> TriggerStore:
        return self.cold.triggers

    @property
    def items(self) -> ColdItems:
        return self.cold.items


class TestSqliteTriggers(TriggerSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteTriggerStores]:
        stores = SqliteTriggerStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()


class TestPostgresTriggers(TriggerSuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresTriggerStores]:
        async with Bridge() as bridge:
            stores = PostgresTriggerStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()

    async def test_daemons_that_poll_at_once_make_one_job_at_a_time(
        self, stores: PostgresTriggerStores
    ) -> None:
        await put(stores, *(new_row(3) for _ in range(10)))
        other = stores.make(b"another daemon..")
        await other.open()
        made: dict[bytes, int] = {}

        async def race(triggers: TriggerStore, holder: bytes) -> None:
            claim = Claim("q", "jobs", 4, 100, 5, number())
            polled = await triggers.poll(Poll("t", holder, 30.0, 1000, claim, is_forced=True))
            if polled.made is not None:
                made[holder] = polled.made.items

        for _ in range(9):
            made.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(race, stores.triggers, b"me")
                nursery.start_soon(race, other.triggers, b"other")
            # Whoever was first has the lease; the other has claimed nothing.
            assert len(made) <= 1
            stores.advance(30_000)
        await other.close()
        rows = await acquire(stores, queue="jobs")
        said = [json.loads(Run(row.head, row.data).payloads()[0]) for row in rows]
        ids = [id_ for each in said for id_ in each["ids"]]
        assert (len(ids), len(set(ids)), max(each["count"] for each in said)) == (30, 30, 4)
        await check_books(stores)

    async def test_daemons_that_end_jobs_of_one_trigger_at_once_do_not_wait_for_each_other(
        self, stores: PostgresTriggerStores
    ) -> None:
        """The items of each job share bodies with those of the next one."""
        other = stores.make(b"another daemon..")
        await other.open()
        await put(stores, *(new_row(7) for _ in range(8)))
        made = [await make(stores, 4) for _ in range(10)]
        rows = await acquire(stores, LOCK, queue="jobs")
        seen = watch(stores)
        other.triggers.watch(seen)

        async def settle(cold: ColdStore, part: Sequence[ColdRow]) -> None:
            for row in part:
                await cold.settle([RowOutcome(row.row, LOCK, delivered=1)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle, stores.cold, rows[::2])
            nursery.start_soon(settle, other, rows[1::2])
        await other.close()
        assert seen.ends.keys() == {job.run_id for job in made}
        assert (await stores.cold.totals())["q"].delivered == 40
        await check_books(stores)

    async def test_a_daemon_that_stands_still_in_a_poll_is_not_waited_for_for_ever(
        self, stores: PostgresTriggerStores
    ) -> None:
        await put(stores, new_row(1))
        await stores.triggers.pause("t", is_paused=False)
        hasty = Database(
            stores.url, 0.2, Bridge(), stores.schema, connections_max=1, is_pooled=False
        )
        # What a daemon leaves that is stopped in the middle of a step: it says nothing more, and
        # stays connected.
        con = await stores.say(
            f"BEGIN; {hasty._settings}", "SELECT 1 FROM trigger_leases FOR UPDATE"
        )
        assert (await make(stores)).items == 1
        await stores.hang_up(con)
