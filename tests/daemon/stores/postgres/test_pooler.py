"""Nothing is left in a session, so that a pooler may give each transaction another one."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.ports.tiers import ColdTotals, DeadFilter, RowOutcome, StoreUnavailable
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from tests.conformance.cold_stores import LEASE_S, PLENTY, dead_row, new_row
from tests.conformance.postgres_stores import TIMEOUT_S, PostgresStores
from tests.eventually import eventually, eventually_sync
from tests.servers.postgres import PORT, USER, PostgresServer, postgres_server

LOCK = b"L" * 16
EPOCH, NEXT_EPOCH = b"E" * 16, b"F" * 16
DAEMON = b"behind a pooler."
START_S = 120.0


async def use(cold: PostgresCold) -> None:
    """A bit of everything, several steps at once."""
    rows = [new_row() for _ in range(8)]
    async with trio.open_nursery() as nursery:
        for row in rows:
            nursery.start_soon(put, cold, row)
        nursery.start_soon(put, cold, dead_row())
    got = await cold.acquire("q", LOCK, PLENTY, PLENTY, LEASE_S)
    await cold.renew([LOCK], LEASE_S)
    done = [RowOutcome(row.row, LOCK, delivered=row.bits) for row in got]
    assert await cold.settle(done) == [True] * 8
    await cold.dead_letters.remove(DeadFilter(), 10)
    await cold.claim("q", "c", 0, 10)
    await use_shared_rows(cold)
    assert (await cold.outlook("q")).has_due is False
    assert (await cold.totals())["q"] == ColdTotals(taken=28, delivered=27, deleted=1)


async def use_shared_rows(cold: PostgresCold) -> None:
    """A row enters a shared warm queue, which forgets it."""
    rows, row = cold.shared_rows, new_row()
    await cold.store([row])
    await rows.confirm([], {EPOCH: [row.row]})
    assert await rows.left(EPOCH, [row.row]) == {row.row: row.bits}
    assert await rows.entered("q", EPOCH, -LEASE_S, 10) == [row.row]
    assert await rows.end_epochs("q", NEXT_EPOCH, -LEASE_S) == 1
    [again] = await rows.acquire("q", NEXT_EPOCH, PLENTY, PLENTY, frozenset())
    assert await cold.settle([RowOutcome(again.row, NEXT_EPOCH, delivered=again.bits)]) == [True]


async def put(cold: PostgresCold, row: Any) -> None:
    await cold.store([row])
    await cold.confirm([row.row])


async def test_a_pooled_connection_is_left_as_it_was(bridge: Bridge) -> None:
    stores = PostgresStores(bridge)
    cold = stores.make(DAEMON, is_pooled=True, connections_max=1)
    await cold.open()
    await use(cold)

    async def left() -> tuple[Any, ...]:
        """Of the one session that there is."""
        pool = cold._db._pool
        async with pool.acquire() as con:
            prepared = await con.fetchval("SELECT count(*) FROM pg_prepared_statements")
            # The driver's own look at types leaves `jit` as it likes it.
            settings = await con.fetchval(
                "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name <> 'jit'"
            )
            locks = await con.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            channels = await con.fetchval("SELECT count(*) FROM pg_listening_channels()")
            return prepared, settings, locks, channels

    assert await bridge.run(left, TIMEOUT_S) == (0, 0, 0, 0)
    await cold.close()
    await stores.drop()


@pytest.fixture
def pooler() -> Iterator[tuple[PostgresServer, str]]:
    """A server, and the URL of a PgBouncer before it that has two sessions for everybody."""
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        pytest.skip("pgbouncer is not installed, and `make` could not fetch it")
    directory = Path(tempfile.mkdtemp(prefix="fbpb-", dir="/tmp"))
    directory.chmod(0o777)
    with postgres_server() as server:
        (directory / "users.txt").write_text(f'"{USER}" ""\n')
        (directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={server.directory} port={PORT}\n[pgbouncer]\n"
            f"listen_addr =\nlisten_port = 6432\nunix_socket_dir = {directory}\nauth_type = trust\n"
            f"auth_file = {directory}/users.txt\npool_mode = transaction\ndefault_pool_size = 2\n"
            "max_client_conn = 100\n"
        )
        as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            as_user = {"user": pwd.getpwnam("nobody").pw_uid}
        process = subprocess.Popen(
            [binary, "-q", directory / "pgbouncer.ini"], cwd=directory, **as_user
        )
        try:
            eventually_sync((directory / ".s.PGSQL.6432").exists, "pgbouncer listens")
            yield server, f"postgresql://{USER}@/postgres?host={directory}&port=6432"
        finally:
            process.terminate()
            process.wait(START_S)
            shutil.rmtree(directory, ignore_errors=True)


async def test_everything_works_through_pgbouncer_in_transaction_mode(
    bridge: Bridge, pooler: tuple[PostgresServer, str]
) -> None:
    server, url = pooler
    heard = trio.Event()
    other = PostgresCold(
        PostgresSettings(url, TIMEOUT_S, is_pooled=True, listen_url=server.url()),
        b"another daemon..",
        bridge,
        lambda queue: heard.set(),
    )
    cold = PostgresCold(PostgresSettings(url, TIMEOUT_S, is_pooled=True), DAEMON, bridge)
    await cold.open()
    await other.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(other.listen)
        with trio.fail_after(TIMEOUT_S):
            await other.wakes.listening.wait()
            await use(cold)
            await heard.wait()
        nursery.cancel_scope.cancel()
    server.stop()
    server.start()
    again = new_row(queue="again")
    await eventually(lambda: put(cold, again), errors=(StoreUnavailable,))
    await cold.close()
    await other.close()


async def test_the_stores_session_is_seen_to_be_dirty_if_it_is(bridge: Bridge) -> None:
    """The look at what is left can fail: a cache of statements leaves some."""
    stores = PostgresStores(bridge)
    cold = stores.make(DAEMON, connections_max=1)
    await cold.open()
    await use(cold)

    async def prepared() -> int:
        async with cold._db._pool.acquire() as con:
            return int(await con.fetchval("SELECT count(*) FROM pg_prepared_statements"))

    assert await bridge.run(prepared, TIMEOUT_S) > 0
    await cold.close()
    await stores.drop()
