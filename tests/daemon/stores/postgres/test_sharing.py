"""Two daemons on one database: each row is one's, each one's own is known, the books are exact."""

from collections.abc import AsyncIterator

import pytest
import trio

from actors.model.finished import Keep
from actors.ports.tiers import ColdRow, ColdTotals, DeadFilter, NewRow, RowOutcome
from daemon.errors import CannotStart
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.schema import MIGRATIONS
from daemon.stores.postgres.store import PostgresCold
from tests.conformance.cold_stores import LEASE_S, PLENTY, check_books, dead_row, new_row, part_of
from tests.conformance.postgres_stores import PostgresStores

THIS, OTHER = b"this daemon.....", b"the other daemon"
LOCK = b"L" * 16


class Fleet(PostgresStores):
    """Two daemons; `cold` is this one's, for the suites' checks."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        self.heard: list[tuple[bytes, str]] = []
        self.has_heard = trio.Event()
        self.cold = self.make(THIS, on_wake=lambda queue: self._hear(THIS, queue))
        self.other = self.make(OTHER, on_wake=lambda queue: self._hear(OTHER, queue))

    async def reborn(self) -> None:
        """Another life of this daemon."""
        await self.cold.close()
        self.cold = self.make(THIS)
        await self.cold.open()

    async def give_back(self, row: NewRow) -> None:
        await self.cold.acquire(row.head.queue, LOCK, PLENTY, PLENTY, LEASE_S)
        await self.cold.release(LOCK, [row.row])

    def _hear(self, who: bytes, queue: str) -> None:
        self.heard.append((who, queue))
        self.has_heard.set()


@pytest.fixture
async def fleet(bridge: Bridge) -> AsyncIterator[Fleet]:
    fleet = Fleet(bridge)
    # At once: one migrates, the other waits and finds it done.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.cold.open)
        nursery.start_soon(fleet.other.open)
    yield fleet
    await fleet.other.close()
    await fleet.drop()


async def put(cold: PostgresCold, *rows: NewRow) -> None:
    await cold.store(rows)
    await cold.confirm([row.row for row in rows])


async def test_two_that_race_get_every_row_once_and_the_books_are_exact(fleet: Fleet) -> None:
    rows = [new_row(1 + n % 5, flow=f"flow {n % 3}", priority=n % 2) for n in range(240)]
    acquired: list[bytes] = []
    expected = sum(row.bits.bit_count() for row in rows)

    async def bring(cold: PostgresCold, mine: list[NewRow]) -> None:
        for first in range(0, len(mine), 8):
            await put(cold, *mine[first : first + 8])

    async def drain(cold: PostgresCold, lock: bytes) -> None:
        while (await fleet.cold.totals()).get("q", ColdTotals()).delivered < expected:
            got = await cold.acquire("q", lock, 17, PLENTY, LEASE_S)
            acquired.extend(row.row for row in got)
            done = [RowOutcome(row.row, lock, delivered=row.bits) for row in got]
            assert all(await cold.settle(done))

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for n, cold in enumerate((fleet.cold, fleet.other)):
                nursery.start_soon(bring, cold, rows[n::2])
                nursery.start_soon(drain, cold, bytes([n]) * 16)
                nursery.start_soon(drain, cold, bytes([n + 10]) * 16)
    assert sorted(acquired) == sorted(row.row for row in rows)
    totals = (await fleet.cold.totals())["q"]
    assert totals == ColdTotals(taken=expected, delivered=expected)
    theirs = (await fleet.other.totals())["q"]
    assert totals.taken_from_here + theirs.taken_from_here == expected
    assert totals.taken_from_here == sum(row.bits.bit_count() for row in rows[0::2])
    assert await fleet.cold.flows() == []
    assert await fleet.bodies() == set()
    await check_books(fleet)


@pytest.mark.parametrize("keep", ["none", "all"])
async def test_a_body_goes_with_its_last_row_though_two_take_them_at_once(
    fleet: Fleet, keep: Keep
) -> None:
    """And not while one that needs it comes."""
    for cold in (fleet.cold, fleet.other):
        cold.keep_history(lambda queue: keep)
    for _ in range(15):
        whole = new_row(8)
        parts = [part_of(whole, 1 << n) for n in range(8)]
        await put(fleet.cold, *parts[:6])
        got: list[tuple[PostgresCold, bytes, ColdRow]] = []
        for n, cold in enumerate((fleet.cold, fleet.other) * 3):
            lock = bytes([n]) * 16
            got += [(cold, lock, row) for row in await cold.acquire("q", lock, 1, PLENTY, LEASE_S)]

        async def settle(cold: PostgresCold, lock: bytes, row: ColdRow) -> None:
            assert await cold.settle([RowOutcome(row.row, lock, delivered=row.bits)]) == [True]

        async with trio.open_nursery() as nursery:
            for one in got:
                nursery.start_soon(settle, *one)
            nursery.start_soon(put, fleet.other, *parts[6:])
        assert await fleet.bodies() >= {whole.head.run_id}
        # The last two, at the same time: one of them must take the body with it.
        async with trio.open_nursery() as nursery:
            for cold in (fleet.cold, fleet.other):
                (row,) = await cold.acquire("q", LOCK, 1, PLENTY, LEASE_S)
                nursery.start_soon(settle, cold, LOCK, row)
    if keep == "none":
        assert await fleet.bodies() == set()
    await check_books(fleet)


async def test_each_sees_what_it_left_behind_and_gives_back_its_own(fleet: Fleet) -> None:
    mine, theirs = new_row(origin=b"mine"), new_row(origin=b"theirs")
    await fleet.cold.store([mine])
    await fleet.other.store([theirs])
    assert [left.origin for left in await fleet.cold.unconfirmed()] == [b"mine"]
    assert [left.origin for left in await fleet.other.unconfirmed()] == [b"theirs"]
    await fleet.cold.confirm([mine.row])
    await fleet.other.confirm([theirs.row])
    assert len(await fleet.cold.acquire("q", LOCK, 3, PLENTY, LEASE_S)) == 1
    (got,) = await fleet.other.acquire("q", b"O" * 16, 3, PLENTY, LEASE_S)
    await fleet.reborn()
    assert await fleet.cold.release_all() == 1
    assert len(await fleet.cold.acquire("q", b"N" * 16, PLENTY, PLENTY, LEASE_S)) == 1
    done = RowOutcome(got.row, b"O" * 16, delivered=got.bits)
    assert await fleet.other.settle([done]) == [True]


async def test_a_dead_daemons_leases_run_out_and_its_late_outcome_is_fenced(
    fleet: Fleet,
) -> None:
    row = new_row()
    await put(fleet.cold, row)
    await fleet.other.acquire("q", LOCK, PLENTY, PLENTY, LEASE_S)
    assert await fleet.cold.acquire("q", b"N" * 16, PLENTY, PLENTY, LEASE_S) == []
    fleet.advance(round(LEASE_S * 1000))
    assert len(await fleet.cold.acquire("q", b"N" * 16, PLENTY, PLENTY, LEASE_S)) == 1
    late = RowOutcome(row.row, LOCK, delivered=row.bits)
    assert await fleet.other.settle([late]) == [False]
    assert (await fleet.cold.totals())["q"].delivered == 0


async def test_dead_letters_that_two_retry_are_retried_once(fleet: Fleet) -> None:
    await put(fleet.cold, *(dead_row() for _ in range(60)))
    done: list[int] = []

    async def retry(cold: PostgresCold) -> None:
        cursor = None
        while True:
            change = await cold.dead_letters.retry(DeadFilter(), 7, cursor)
            done.append(change.done)
            cursor = change.cursor
            if cursor is None:
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(retry, fleet.cold)
        nursery.start_soon(retry, fleet.other)
    assert sum(done) == 60
    assert (await fleet.cold.totals())["q"] == ColdTotals(taken=60, held=60, runs=60)
    await check_books(fleet)


async def test_a_consumer_that_asks_two_daemons_gets_one_claim(fleet: Fleet) -> None:
    await put(fleet.cold, *(new_row(1) for _ in range(10)))
    claims = []

    async def claim(cold: PostgresCold) -> None:
        claims.append(await cold.claim("q", "c", 0, 4))

    async with trio.open_nursery() as nursery:
        for cold in (fleet.cold, fleet.other) * 2:
            nursery.start_soon(claim, cold)
    assert {(stream.claim, stream.items) for stream in claims} == {(1, 4)}
    assert (await fleet.cold.stream("q", "c")).waiting == 6


async def test_what_one_makes_due_wakes_the_other_and_not_itself(fleet: Fleet) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(fleet.cold.listen)
        await nursery.start(fleet.other.listen)
        with trio.fail_after(60):
            await fleet.cold.wakes.listening.wait()
            await fleet.other.wakes.listening.wait()
            # Later is no reason to wake.
            await put(fleet.cold, new_row(queue="later", row_due_ms=fleet.now_ms() + 1))
            row, letter = new_row(queue="a"), dead_row(queue="b")
            await put(fleet.cold, row, letter)
            await fleet.has_heard.wait()
            assert fleet.heard == [(OTHER, "a")]
            for act, woken in (
                (lambda: fleet.other.dead_letters.retry(DeadFilter(), 1), (THIS, "b")),
                (lambda: fleet.give_back(row), (OTHER, "a")),
            ):
                fleet.has_heard = trio.Event()
                await act()
                await fleet.has_heard.wait()
                assert fleet.heard[-1] == woken
        nursery.cancel_scope.cancel()


async def test_listening_goes_on_after_a_lost_connection(fleet: Fleet) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(fleet.other.listen)
        with trio.fail_after(60):
            await fleet.other.wakes.listening.wait()
            fleet.other.wakes.listening = trio.Event()
            await fleet.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'forebay listening'"
            )
            await fleet.other.wakes.listening.wait()
            await put(fleet.cold, new_row())
            await fleet.has_heard.wait()
        nursery.cancel_scope.cancel()


async def test_a_schema_of_a_newer_forebay_is_left_alone(fleet: Fleet) -> None:
    await fleet.sql("UPDATE schema_version SET version = 99")
    with pytest.raises(CannotStart, match="99"):
        await fleet.make(OTHER).open()
    await fleet.sql("UPDATE schema_version SET version = $1", len(MIGRATIONS))


async def test_names_come_back_as_they_were(fleet: Fleet) -> None:
    """PostgreSQL's text has no character 0."""
    flow, action = "a\0b\x1a\x1a0é☃", "\x1aS\0"
    row = dead_row("broke \0 here", flow=flow, action=action, headers={"flow_type": "x\0"})
    await put(fleet.cold, row, new_row(flow=flow, action=action))
    assert {(one.flow, one.action) for one in await fleet.cold.flows()} == {(flow, action)}
    assert await fleet.cold.oldest() == {("q", flow, action): row.head.enqueued_ms}
    which = DeadFilter(flow=flow, action=action, error="BROKE \0")
    assert len((await fleet.cold.dead_letters.find(which, 9)).letters) == 1
    paused = frozenset({flow})
    assert await fleet.cold.acquire("q", LOCK, PLENTY, PLENTY, LEASE_S, paused) == []
    assert len(await fleet.cold.acquire("q", LOCK, PLENTY, PLENTY, LEASE_S)) == 1


EPOCH, LATER_EPOCH = b"E" * 16, b"e" * 16


async def test_a_row_that_enters_a_shared_warm_queue_is_nobodys_until_it_is_settled(
    fleet: Fleet,
) -> None:
    warm, waits = new_row(3), new_row(2)
    await fleet.cold.store([warm, waits])
    await fleet.cold.shared_rows.confirm([waits.row], {EPOCH: [warm.row]})
    await check_books(fleet)
    # Neither time nor a restart of the daemon that has stored it makes it due.
    fleet.advance(365 * 24 * 3600 * 1000)
    await fleet.cold.release_all()
    assert [row.row for row in await fleet.other.acquire("q", LOCK, PLENTY, PLENTY, 60)] == [
        waits.row
    ]
    assert (await fleet.other.outlook("q")).next_due_ms == fleet.now_ms() + 60_000
    # Any daemon settles it, by its row and epoch.
    assert await fleet.other.settle([RowOutcome(warm.row, LATER_EPOCH, 0b001)]) == [False]
    assert await fleet.other.settle([RowOutcome(warm.row, EPOCH, 0b001)]) == [True]
    assert await fleet.cold.shared_rows.left(EPOCH, [warm.row, waits.row]) == {warm.row: 0b110}
    assert await fleet.cold.settle([RowOutcome(warm.row, EPOCH, 0b110)]) == [True]
    assert await fleet.cold.shared_rows.left(EPOCH, [warm.row]) == {}
    await check_books(fleet)


async def test_rows_are_brought_for_a_shared_warm_queue_and_cut_to_its_room(fleet: Fleet) -> None:
    rows = [new_row(4), new_row(4)]
    await put(fleet.cold, *rows)
    brought = await fleet.cold.shared_rows.acquire("q", EPOCH, 6, PLENTY, frozenset())
    assert [row.bits for row in brought] == [0b1111, 0b0011]
    assert await fleet.other.shared_rows.entered("q", EPOCH, 0, 10) == [row.row for row in brought]
    assert await fleet.other.shared_rows.entered("q", EPOCH, 1, 10) == []
    fleet.advance(1000)
    assert await fleet.other.shared_rows.entered("q", EPOCH, 1, 1) == [brought[0].row]
    assert await fleet.other.shared_rows.entered("q", LATER_EPOCH, 0, 10) == []
    # What is given back is due at once, for all.
    await fleet.other.release(EPOCH, [brought[0].row])
    (again,) = await fleet.cold.shared_rows.acquire("q", EPOCH, 4, PLENTY, frozenset())
    assert again.row == brought[0].row
    await check_books(fleet)


async def test_rows_of_a_forgotten_epoch_are_due_when_their_leases_have_ended(fleet: Fleet) -> None:
    rows = [new_row(), new_row(), new_row(queue="other")]
    await put(fleet.cold, *rows)
    shared = fleet.cold.shared_rows
    (old,) = await shared.acquire("q", EPOCH, 3, PLENTY, frozenset())
    (new,) = await shared.acquire("q", LATER_EPOCH, 3, PLENTY, frozenset())
    await shared.acquire("other", EPOCH, 3, PLENTY, frozenset())
    assert await fleet.other.shared_rows.end_epochs("q", LATER_EPOCH, 60) == 1
    assert await fleet.other.shared_rows.end_epochs("q", LATER_EPOCH, 60) == 0
    # An outcome of the old epoch counts until another daemon has the row.
    fleet.advance(59_999)
    assert await fleet.other.acquire("q", LOCK, PLENTY, PLENTY, 60) == []
    fleet.advance(1)
    assert [row.row for row in await fleet.other.acquire("q", LOCK, PLENTY, PLENTY, 60)] == [
        old.row
    ]
    assert await fleet.cold.settle([RowOutcome(old.row, EPOCH, 1)]) == [False]
    assert await shared.left(LATER_EPOCH, [new.row]) == {new.row: new.bits}
    assert await fleet.other.acquire("other", LOCK, PLENTY, PLENTY, 60) == []
