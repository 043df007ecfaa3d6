"""A server that goes away in every way that servers do: said as what it is, and over when it is
back, without anybody's help."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio

from actors.ports.tiers import ColdTotals, DeadFilter, RowOutcome, StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.postgres import store as module
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from tests.conformance.cold_stores import PLENTY, dead_row, new_row
from tests.conformance.postgres_stores import DAEMON, TIMEOUT_S, PostgresStores
from tests.eventually import eventually
from tests.servers.postgres import PostgresServer

LOCK = b"L" * 16
SHORT_S = 0.5


class Rig(PostgresStores):
    """A store whose server a test may hurt, and the same with a short deadline."""

    def __init__(self, bridge: Bridge, server: PostgresServer) -> None:
        self.server = server
        super().__init__(bridge, server.url())
        self.hasty = self.make(timeout_s=SHORT_S)

    async def open(self) -> None:
        await self.cold.open()
        await until_available(self.hasty.open)

    def make(self, daemon: bytes = DAEMON, **given: Any) -> PostgresCold:
        given.setdefault("timeout_s", TIMEOUT_S)
        settings = PostgresSettings(self.url, schema=self.schema, **given)
        return PostgresCold(settings, daemon, self._bridge)

    async def works(self) -> None:
        """A row comes, is acquired, and goes."""
        before = (await self.cold.totals()).get("q", ColdTotals())
        row = new_row()
        await self.cold.store([row])
        await self.cold.confirm([row.row])
        rows = await self.cold.acquire("q", LOCK, PLENTY, PLENTY, 60)
        assert row.row in [one.row for one in rows]
        done = [RowOutcome(one.row, LOCK, delivered=one.bits) for one in rows]
        assert all(await self.cold.settle(done))
        after = (await self.cold.totals())["q"]
        assert (after.taken, after.held) == (before.taken + 3, 0)

    async def store_until_refused(self) -> None:
        """A server takes its time to read its configuration."""
        while True:
            await self.cold.store([new_row()])

    async def is_back(self) -> None:
        await until_available(self.hasty.totals)
        await self.works()


async def until_available(call: Callable[[], Awaitable[object]]) -> None:
    """Somebody who tries again and again, as the actors do."""
    await eventually(call, errors=(StoreUnavailable,))


@pytest.fixture
async def rig(bridge: Bridge, server: PostgresServer) -> AsyncIterator[Rig]:
    rig = Rig(bridge, server)
    await rig.open()
    yield rig
    server.put_right()
    await rig.hasty.close()
    await rig.drop()


async def test_a_server_that_was_stopped_is_used_again_when_it_is_back(rig: Rig) -> None:
    await rig.works()
    rig.server.stop()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await rig.hasty.store([new_row()])
        with pytest.raises(StoreUnavailable):
            await rig.hasty.totals()
    rig.server.start()
    await rig.is_back()


async def test_what_was_acknowledged_outlives_a_killed_server(rig: Rig) -> None:
    """It was killed, not the machine: what it wrote, the kernel has."""
    rows = [new_row() for _ in range(20)]
    await rig.cold.store(rows)
    await rig.cold.confirm([row.row for row in rows])
    rig.server.kill()
    with pytest.raises(StoreUnavailable):
        await rig.hasty.totals()
    rig.server.start()
    assert (await rig.cold.totals())["q"] == ColdTotals(taken=60, held=60, runs=20)
    await rig.is_back()
    await rig.works()


async def test_a_server_that_hangs_is_given_up_within_the_deadline(rig: Rig) -> None:
    await rig.works()
    row = new_row()
    await rig.cold.store([row])
    rig.server.pause()
    with trio.fail_after(60):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await rig.hasty.confirm([row.row])
            with pytest.raises(StoreUnavailable):
                await rig.hasty.outlook("q")
        with pytest.raises(StoreUnavailable):
            await rig.hasty.dead_letters.find(DeadFilter(), 1)
    rig.server.resume()
    await rig.cold.confirm([row.row])
    await rig.is_back()


async def test_closing_does_not_wait_for_a_server_that_hangs(rig: Rig) -> None:
    await rig.works()
    rig.server.pause()
    with trio.fail_after(60):
        with pytest.raises(StoreUnavailable):
            await rig.hasty.totals()
        await rig.hasty.close()
        await rig.cold.close()
    rig.server.resume()
    await rig.reopen()
    await rig.works()


async def test_terminated_connections_are_not_noticed(rig: Rig) -> None:
    """The step is taken again on another."""
    await rig.works()
    for _ in range(3):
        await rig.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND application_name = 'forebay'"
        )
        await rig.works()


async def test_connections_that_end_under_way_leave_nothing_half_done(rig: Rig) -> None:
    """While transactions run, somebody terminates them: each has happened once, or not at all."""
    rows = [new_row(1) for _ in range(60)]
    unknown: set[bytes] = set()
    progress = trio.Event()

    async def put(some: list[Any]) -> None:
        nonlocal progress
        for row in some:
            try:
                await rig.cold.store([row])
                await rig.cold.confirm([row.row])
            except StoreUnavailable:
                unknown.add(row.row)
            progress.set()
            progress = trio.Event()

    async def terminate() -> None:
        """Again and again, but not so often that nobody gets anywhere."""
        while True:
            await rig.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'forebay'"
            )
            await progress.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(terminate)
        async with trio.open_nursery() as putting:
            for first in range(6):
                putting.start_soon(put, rows[first::6])
        nursery.cancel_scope.cancel()
    await rig.cold.store([row for row in rows if row.row in unknown])
    await rig.cold.confirm(list(unknown))
    assert (await rig.cold.totals())["q"] == ColdTotals(taken=60, held=60, runs=60)
    assert len(await rig.cold.acquire("q", LOCK, PLENTY, PLENTY, 60)) == 60


async def test_a_server_that_takes_no_writes_says_so(rig: Rig) -> None:
    await rig.works()
    await rig.sql("ALTER SYSTEM SET default_transaction_read_only = on")
    await rig.sql("SELECT pg_reload_conf()")
    try:
        with pytest.raises(StoreUnavailable, match="read-only"):
            await rig.store_until_refused()
        await rig.cold.totals()
    finally:
        rig.server.sql("ALTER SYSTEM RESET ALL")
        rig.server.sql("SELECT pg_reload_conf()")
    await until_available(rig.works)


async def test_a_server_that_is_not_there_is_unavailable_at_the_start(
    bridge: Bridge, server: PostgresServer
) -> None:
    rig = Rig(bridge, server)
    server.stop()
    with pytest.raises(StoreUnavailable):
        await rig.hasty.open()
    with pytest.raises(StoreUnavailable, match="not open"):
        await rig.hasty.totals()
    server.start()
    await rig.open()
    await rig.works()
    await rig.hasty.close()
    await rig.drop()


@pytest.mark.parametrize(
    "url",
    ["postgresql://nobody@/nothing?host=/nonexistent", "mysql://x/y", "postgresql://h:port/x"],
)
async def test_a_wrong_url_is_unavailable_and_says_why(bridge: Bridge, url: str) -> None:
    cold = PostgresCold(PostgresSettings(url, 0.2), DAEMON, bridge)
    with pytest.raises(StoreUnavailable, match=r"PostgreSQL: .+"):
        await cold.open()


async def test_a_standby_is_required_where_it_is_asked_for(rig: Rig) -> None:
    strict = rig.make(require_sync_standby=True)
    await strict.open()
    with pytest.raises(StoreUnavailable, match="standby"):
        await strict.store([new_row()])
    assert await strict.unconfirmed() == []
    # What is here already drains.
    row = dead_row()
    await rig.cold.store([row])
    await strict.confirm([row.row])
    assert (await strict.dead_letters.remove(DeadFilter(), 1)).done == 1
    await strict.close()


async def test_flows_that_are_gone_are_forgotten_and_nothing_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_S", 0.0)
    other = rig.make(b"another daemon..")
    await other.open()
    kept, gone = new_row(flow="kept"), new_row(flow="gone")
    await rig.cold.store([kept, gone])
    await rig.cold.confirm([kept.row, gone.row])
    await other.acquire("q", LOCK, PLENTY, PLENTY, 60)
    assert await other.settle([RowOutcome(gone.row, LOCK, delivered=gone.bits)]) == [True]
    assert len(await rig.sql("SELECT * FROM flows WHERE flow = 'gone'")) == 2
    before = await rig.cold.flows()
    await other.sync()
    assert await rig.sql("SELECT * FROM flows WHERE flow = 'gone'") == []
    assert await rig.cold.flows() == before
    assert [flow.flow for flow in before] == ["kept"]
    await other.close()
