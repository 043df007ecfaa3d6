"""The suite of decisions about writes, and its model, passed by SQLite and by PostgreSQL."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import asyncpg
import pytest
import trio
from hypothesis import given, settings

from actors.ports.writes import DECIDED, Decisions
from daemon.stores.bridge import Bridge
from daemon.stores.cold import write_statements
from daemon.stores.cold.connection import Connection, Database, Step
from daemon.stores.cold.statement import Statement
from daemon.stores.cold.writes import SEALS_MAX, ColdDecisions
from daemon.stores.postgres.schema import MIGRATIONS
from forebay.errors import Refused
from tests.conformance import writes_model
from tests.conformance.cold_writes import OTHER, THIS, A, B, V, W, WriteSuite, publish, sealed, wish
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.sqlite_stores import SqliteStores
from tests.conformance.test_cold_model import MEMORY
from tests.conformance.writes_model import play

T = TypeVar("T")


class As:
    """A connection of another daemon."""

    def __init__(self, con: Connection, daemon: bytes) -> None:
        self._con = con
        self.daemon = daemon

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)


class OtherDaemon:
    """SQLite as another daemon would see it; counts its steps."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.writes = 0

    async def read(self, step: Step[T]) -> T:
        return await self._db.read(lambda con: step(cast(Connection, As(con, OTHER))))

    async def write(self, step: Step[T], **how: bool) -> T:
        self.writes += 1
        return await self._db.write(lambda con: step(cast(Connection, As(con, OTHER))), **how)

    async def sync(self) -> None:
        await self._db.sync()


class SqliteWriteStores(SqliteStores):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.this: Decisions = self.cold.decisions
        self.database = OtherDaemon(self.cold._steps)
        self.other: Decisions = ColdDecisions(self.database)

    async def count(self, table: str) -> int:
        (count,) = self.beside(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchone())
        return int(count)


class PostgresWriteStores(PostgresStores):
    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        self.heard: list[str] = []
        self.has_heard = trio.Event()
        self.cold = self.make(THIS)
        self.other_cold = self.make(OTHER, on_wake=self._hear)
        self.this: Decisions = self.cold.decisions
        self.other: Decisions = self.other_cold.decisions

    def _hear(self, said: str) -> None:
        self.heard.append(said)
        self.has_heard.set()

    async def count(self, table: str) -> int:
        return int((await self.sql(f"SELECT count(*) FROM {table}"))[0][0])


@asynccontextmanager
async def on_sqlite(directory: Path) -> AsyncIterator[SqliteWriteStores]:
    stores = SqliteWriteStores(directory)
    await stores.cold.open()
    try:
        yield stores
    finally:
        await stores.cold.close()


@asynccontextmanager
async def on_postgres(bridge: Bridge) -> AsyncIterator[PostgresWriteStores]:
    stores = PostgresWriteStores(bridge)
    await stores.cold.open()
    await stores.other_cold.open()
    try:
        yield stores
    finally:
        await stores.other_cold.close()
        await stores.drop()


class TestSqliteWrites(WriteSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteWriteStores]:
        async with on_sqlite(tmp_path) as stores:
            yield stores

    async def test_seals_that_wait_share_steps(self, stores: SqliteWriteStores) -> None:
        count = 3 * SEALS_MAX
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(stores.other.seal, W, sealed(number.to_bytes(16, "big")))
        assert stores.database.writes <= 4
        assert await stores.count("stages") == count

    async def test_decisions_survive_a_kill(self, stores: SqliteWriteStores) -> None:
        await stores.this.seal(W, sealed(A))
        await stores.this.publish(wish(W, A))
        await stores.crash()
        (verdict,) = await stores.cold.decisions.verdicts([])
        assert (verdict.write, verdict.stages) == (W, (A,))

    async def test_no_statement_reads_a_whole_table(self, stores: SqliteWriteStores) -> None:
        """However many writes and stages are kept."""
        scans: dict[str, str] = {}
        for name, statement in vars(write_statements).items():
            if isinstance(statement, Statement):
                values = [
                    [b"1"] if f"ANY (${number})" in statement.postgres else 1
                    for number in range(1, statement._parameters + 1)
                ]
                for step in stores.plan(statement, *values):
                    if step.startswith("SCAN"):
                        scans[name] = step
        assert scans.keys() == {"QUIET_APPS"}, scans


class TestPostgresWrites(WriteSuite):
    @pytest.fixture
    async def bridge(self) -> AsyncIterator[Bridge]:
        async with Bridge() as bridge:
            yield bridge

    @pytest.fixture
    async def stores(self, bridge: Bridge) -> AsyncIterator[PostgresWriteStores]:
        async with on_postgres(bridge) as stores:
            yield stores

    async def test_a_seal_waits_for_a_decision_that_is_under_way(
        self, stores: PostgresWriteStores, bridge: Bridge
    ) -> None:
        await stores.this.seal(W, sealed(A))
        has_begun = trio.Event()

        async def decide() -> None:
            """Commits when somebody waits for it, or nobody has for long."""
            con = await asyncpg.connect(stores.url, server_settings={"search_path": stores.schema})
            async with con.transaction():
                await con.execute("UPDATE writes SET phase = 'aborted'")
                bridge.call_in_trio(has_begun.set)
                for _ in range(6000):
                    if await con.fetchval(
                        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND"
                        " transactionid::text = pg_current_xact_id()::text)"
                    ):
                        break
                    await asyncio.sleep(0.01)
            await con.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bridge.run, decide, 60.0)
            await has_begun.wait()
            with pytest.raises(Refused, match="aborted"):
                await stores.other.seal(W, sealed(B))

    async def test_a_decision_wakes_the_others(self, stores: PostgresWriteStores) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(stores.other_cold.listen)
            with trio.fail_after(60):
                await stores.other_cold.wakes.listening.wait()
                await stores.this.seal(W, sealed(A))
                await publish(stores.this, wish(W, A))
                await stores.has_heard.wait()
            assert stores.heard == [DECIDED]
            nursery.cancel_scope.cancel()

    async def test_queues_of_an_older_schema_are_read(self, stores: PostgresWriteStores) -> None:
        """They were arrays."""
        await stores.this.seal(W, sealed(A, 1, "crm", "mail"))
        await publish(stores.this, wish(W, A, app="feed", version=1))
        for table, old in (("writes", "SET DEFAULT '{}'"), ("stages", "SET NOT NULL")):
            await stores.sql(
                f"ALTER TABLE {table} ALTER queues DROP DEFAULT,"
                " ALTER queues TYPE text[] USING string_to_array(queues, ',')"
            )
            await stores.sql(f"ALTER TABLE {table} ALTER queues {old}")
        (migration,) = [found for found in MIGRATIONS if "array_to_string" in found[0]]
        for statement in migration:
            await stores.sql(statement)
        (verdict,) = await stores.this.verdicts([])
        assert verdict.queues == ("crm", "mail")
        await stores.this.seal(V, sealed(B, 1, "mail"))
        replay = wish(V, B, app="feed", version=1)
        assert (await publish(stores.this, replay)).write == W


@given(writes_model.scripts)
@settings(max_examples=60, deadline=None)
def test_sqlite_agrees_with_the_model_of_writes(script: Sequence[writes_model.Step]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            async with on_sqlite(Path(directory)) as stores:
                await play(stores, script)

    trio.run(run)


@given(writes_model.scripts)
@settings(max_examples=40, deadline=None)
def test_postgres_agrees_with_the_model_of_writes(script: Sequence[writes_model.Step]) -> None:
    async def run() -> None:
        async with Bridge() as bridge, on_postgres(bridge) as stores:
            await play(stores, script)

    trio.run(run)
