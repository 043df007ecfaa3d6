"""With many rows, no step reads more than it needs: the plans of the real statements.

The server writes down every plan that it carries out, also those inside its functions, with what
was read (auto_explain). Each step is taken before there are statistics and after ANALYZE.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
import trio

from actors.ports.tiers import DeadFilter, RowOutcome
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from tests.conformance.cold_stores import PLENTY, START_MS, new_row
from tests.servers.postgres import PostgresServer, bindir, postgres_server

ROWS = 200_000
ROWS_READ_MAX = 6000
"""By one node of a plan: a search for dead letters looks at 5,000 at a time."""
LOCK = b"L" * 16
DAEMON = b"daemon of plans."
TIMEOUT_S = 500.0

PLANS = (
    "shared_preload_libraries = 'auto_explain'",
    "auto_explain.log_min_duration = -1",
    "auto_explain.log_nested_statements = on",
    "auto_explain.log_analyze = on",
    "auto_explain.log_timing = off",
    "maintenance_work_mem = 128MB",
    "autovacuum = off",
)

# Seven tenths are due, the others are not due yet, leased, dead, or claimed.
FILL = f"""
SET session_replication_role = replica;
INSERT INTO bodies SELECT decode('2' || lpad(to_hex(b), 31, '0'), 'hex'), 'no run'
    FROM generate_series(0, 9999) b;
INSERT INTO runs (id, body_id, state, is_due, queue, flow, flow_type, action, priority,
    scheduled_at, scheduled_at_initially, due_ms, first_item, count, size, attempt, lock_uuid,
    holder, brought_by, created_at, origin, item_id, died_at, error_folded, bits, error_history,
    write_id, consumer, place)
SELECT decode('1' || lpad(to_hex(n), 31, '0'), 'hex'),
    decode('2' || lpad(to_hex(n % 10000), 31, '0'), 'hex'),
    CASE n % 10 WHEN 8 THEN 'FAILED' WHEN 9 THEN 'CLAIMED' ELSE 'COLD_QUEUED' END, n % 10 < 6,
    'q', 'flow ' || n % 100, '', 'a', n % 7, {START_MS} + 60000 + n, {START_MS} + n, 0, 0, 1, 100,
    0, CASE WHEN n % 10 = 7 THEN decode('e' || lpad(to_hex(n % 5000), 31, '0'), 'hex') END,
    CASE WHEN n % 10 = 7 THEN decode('aa', 'hex') END, '{DAEMON.decode()}', {START_MS} + n, '',
    CASE WHEN n % 10 = 8 THEN 'item ' || n END, CASE WHEN n % 10 = 8 THEN n END,
    CASE WHEN n % 10 = 8 THEN 'timeout' END, '\\x01', '[]', NULL,
    CASE WHEN n % 10 = 9 THEN n % 50 END, CASE WHEN n % 10 = 9 THEN n / 50 END
FROM generate_series(1, {ROWS}) n;
"""


@pytest.fixture(scope="module")
def full() -> Iterator[PostgresServer]:
    """A server whose store has many rows that no code has looked at."""
    if not any(bindir().parent.glob("lib/**/auto_explain.so")):
        pytest.skip("this PostgreSQL writes no plans down: it has no auto_explain")

    async def build(server: PostgresServer) -> None:
        async with Bridge() as bridge:
            cold = PostgresCold(PostgresSettings(server.url(), TIMEOUT_S), DAEMON, bridge)
            await cold.open()
            await cold.close()

            async def fill() -> None:
                con = await asyncpg.connect(
                    server.url(), server_settings={"search_path": "forebay"}
                )
                try:
                    await fill_without_indexes(con)
                finally:
                    await con.close()

            await bridge.run(fill, TIMEOUT_S)

    with postgres_server(options=PLANS) as server:
        trio.run(build, server)
        server.sql("ALTER SYSTEM SET auto_explain.log_min_duration = 0")
        server.stop()
        server.start()
        yield server


async def fill_without_indexes(con: Any) -> None:
    """They are made afterwards, which is several times as fast."""
    indexes = await con.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'forebay' "
        "AND tablename = 'runs' AND indexname NOT IN ('runs_pkey', 'runs_id_key')"
    )
    for name, _ in indexes:
        await con.execute(f"DROP INDEX {name}")
    await con.execute(FILL)
    for _, definition in indexes:
        await con.execute(definition)


class Plans:
    """What the server wrote down since."""

    def __init__(self, server: PostgresServer) -> None:
        self._log = server.directory / "log"
        self._at = self._log.stat().st_size

    def text(self) -> str:
        with self._log.open() as log:
            log.seek(self._at)
            return log.read()

    def check(self) -> None:
        text = self.text()
        assert "Index" in text
        assert not re.search(r"Seq Scan on (runs|bodies|history|keys)\b", text), text
        for node in re.finditer(
            r"-> .*(?:Scan|Sort|LockRows).*actual rows=(\d+) loops=(\d+)", text
        ):
            read = int(node[1]) * int(node[2])
            assert read <= ROWS_READ_MAX, text[max(0, node.start() - 2000) : node.end()]
        for skipped in re.finditer(r"Rows Removed by Filter: (\d+)", text):
            assert int(skipped[1]) <= ROWS_READ_MAX, text


@pytest.fixture
async def cold(full: PostgresServer, bridge: Bridge) -> AsyncIterator[PostgresCold]:
    settings = PostgresSettings(full.url(), TIMEOUT_S)
    cold = PostgresCold(settings, DAEMON, bridge, now_ms=lambda: START_MS)
    await cold.open()
    yield cold
    await cold.close()


async def acquire_and_settle(cold: PostgresCold) -> None:
    rows = [new_row(2, priority=0, enqueued_ms=1) for _ in range(3)]
    await cold.store(rows)
    await cold.confirm([row.row for row in rows])
    got = await cold.acquire("q", LOCK, 6, PLENTY, 60)
    assert [row.row for row in got] == [row.row for row in rows]
    assert await cold.renew([LOCK, b"\xee" * 16], 60) == [3, 0]
    await cold.release(LOCK, [rows[0].row])
    done = [RowOutcome(row.row, LOCK, delivered=row.bits) for row in rows[1:]]
    assert await cold.settle(done) == [True, True]
    again = await cold.acquire("q", LOCK, 2, PLENTY, 60)
    assert await cold.settle([RowOutcome(again[0].row, LOCK, delivered=again[0].bits)]) == [True]


async def look_ahead(cold: PostgresCold) -> None:
    assert (await cold.outlook("q")).has_due
    assert not (await cold.outlook("nothing")).has_due
    without = frozenset(f"flow {n}" for n in range(100) if n % 3)
    assert (await cold.outlook("q", without)).next_due_ms == START_MS + 60_006


async def count(cold: PostgresCold) -> None:
    await cold.totals()
    await cold.flows()
    await cold.oldest()
    await cold.receipt(b"w" * 16)
    await cold.stream("q", "c")
    await cold.dead_letters.count(DeadFilter(queue="q"), PLENTY)


async def leave_behind(cold: PostgresCold) -> None:
    row = new_row()
    await cold.store([row])
    assert [left.row for left in await cold.unconfirmed()] == [row.row]
    await cold.forget([row.row])
    assert await cold.release_all() == 0


async def look_at_the_dead(cold: PostgresCold) -> None:
    assert len((await cold.dead_letters.find(DeadFilter(queue="q"), 10)).letters) == 10
    assert len((await cold.dead_letters.find(DeadFilter(ids=("item 8",)), 10)).letters) == 1
    change = await cold.dead_letters.retry(DeadFilter(ids=("nothing",)), 10)
    assert change.done == 0
    assert not await cold.dead_letters.edit("nothing", b"")


async def look_at_some(cold: PostgresCold) -> None:
    await cold.peek("q", f"{ROWS // 2}-{ROWS}", 10, PLENTY)
    await cold.history("q", "", 10, PLENTY)
    await cold.history_queues()
    await cold.forget_history("q", START_MS)


async def claim(cold: PostgresCold) -> None:
    assert (await cold.claim("q", "c", 0, 5)).items == 5
    assert (await cold.claim("q", "c", 1, 0)).acknowledged == 1
    assert (await cold.claim("q", "c", 1, 3)).items == 3
    assert await cold.drop_stream("q", "c") == 3


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["no statistics", "analyzed"])
@pytest.mark.parametrize(
    "step",
    [acquire_and_settle, look_ahead, count, leave_behind, look_at_the_dead, look_at_some, claim],
    ids=lambda step: step.__name__.replace("_", " "),
)
async def test_a_step_reads_no_more_than_it_needs(
    full: PostgresServer,
    cold: PostgresCold,
    step: Callable[[PostgresCold], Awaitable[Any]],
    is_analyzed: bool,
) -> None:
    if is_analyzed:
        full.sql("ANALYZE forebay.runs; ANALYZE forebay.bodies")
    plans = Plans(full)
    await step(cold)
    plans.check()
