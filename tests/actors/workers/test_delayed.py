"""Delayed queues: locks, due times, and leases that run out, on a clock that a test moves."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

import pytest
import structlog
import trio
import trio.testing

from actors.model.latencies import NOTHING
from actors.ports.tiers import StoreUnavailable
from actors.workers import lease_ends
from actors.workers.pull import LATE_S, MARGIN_MS, Holdings
from actors.workers.pull_reports import Ended
from forebay.client import Client, connect
from forebay.delayed import Lock, LockLost, due_ms_of, polled
from forebay.lease_frames import LeasedRun, LeaseWish
from forebay.leases import unpack
from forebay.run import encode_run
from tests.wire.harness import Served, serve
from tests.wire.lending import NOW_MS, Lending, all_delivered

T = TypeVar("T")
KEPT = LeaseWish("crm", lease_ms=1000, keep=True, times=True)


class Ticking(Lending):
    """Its clock is trio's."""

    @property
    def now_ms(self) -> int:
        return NOW_MS + round(trio.current_time() * 1000)

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        pass


@pytest.fixture
def lending() -> Lending:
    return Lending()


@pytest.fixture
async def served(tmp_path: Path, lending: Lending) -> AsyncIterator[Served]:
    async with serve(tmp_path, pull=lending.pull) as served:
        yield served


async def with_client(served: Served, work: Callable[[Client], T]) -> T:
    def run() -> T:
        with connect(served.path, timeout=120) as client:
            return work(client)

    return await trio.to_thread.run_sync(run, abandon_on_cancel=True)


@pytest.mark.parametrize(
    "text, lock",
    [
        ("17.crm", Lock("crm", (17,))),
        ("17+18.a.b", Lock("a.b", (17, 18))),
        (f"{2**64 - 1}.q", Lock("q", (2**64 - 1,))),
    ],
)
def test_a_lock_is_read_as_it_is_written(text: str, lock: Lock) -> None:
    assert Lock.parse(text) == lock
    assert str(lock) == text


@pytest.mark.parametrize(
    "text", ["", "17", "17.", ".crm", "x.crm", "17+.crm", "17+17.crm", f"{2**64}.q", "17.a b"]
)
def test_what_is_no_lock_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid lock"):
        Lock.parse(text)


def test_a_due_time_is_a_moment_with_a_zone_or_so_long_from_now() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    ms = 1_772_366_400_000
    assert (due_ms_of(None), due_ms_of(5), due_ms_of(noon)) == (0, 5, ms)
    assert due_ms_of(noon.astimezone(timezone(timedelta(hours=5)))) == ms
    hour = timedelta(hours=1)
    before = due_ms_of(datetime.now(UTC) + hour)
    assert before <= due_ms_of(hour) <= due_ms_of(datetime.now(UTC) + hour)
    with pytest.raises(ValueError, match="zone"):
        due_ms_of(noon.replace(tzinfo=None))


async def test_a_lock_outlives_the_connection_that_polled(served: Served, lending: Lending) -> None:
    run = encode_run([b"a", b"b"], queue="crm", keys=[b"k1", b"k2"], due_ms=NOW_MS - 5)
    await lending.enter(run)

    def poll(client: Client) -> str:
        batch = client.delayed("crm").try_poll_many(10, lease_s=60)
        assert [(one.key, one.payload) for one in batch] == [("k1", b"a"), ("k2", b"b")]
        assert [one.scheduled_at_initially_ms for one in batch[:2]] == [NOW_MS - 5] * 2
        assert {one.until_ms for one in batch} == {NOW_MS + 60_000}
        assert not client.delayed("crm").try_poll_many(10)
        return str(batch.lock)

    lock = await with_client(served, poll)
    await with_client(served, lambda client: client.delayed("crm").extend(lock, 600))
    await lending.expire(after_ms=60_000)
    await with_client(served, lambda client: client.delayed("crm").ack(lock))
    assert [ended.delivered for ended in lending.ended] == [0b11]

    def again(client: Client) -> None:
        for act in (client.delayed("crm").ack, client.delayed("crm").nack):
            with pytest.raises(LockLost) as caught:
                act(lock)
            assert str(caught.value.lock) == lock
        with pytest.raises(ValueError, match="not of the queue"):
            client.delayed("other").ack(lock)

    await with_client(served, again)


async def test_what_is_refused_by_lock_says_why(served: Served, lending: Lending) -> None:
    await lending.enter_items(b"a")

    def work(client: Client) -> None:
        queue = client.delayed("crm")
        polled = queue.try_poll()
        assert polled is not None
        queue.nack(polled.lock, delay_s=1.5, error="no such customer", permanent=True)
        with pytest.raises(ValueError, match="one of application, business"):
            queue.nack(polled.lock, reason="bussiness")  # type: ignore[arg-type]
        assert client.delayed("crm").try_poll(consumer="me") is not None

    await with_client(served, work)
    [(bits, failure)] = lending.ended[0].failed
    assert (bits, failure.text, failure.retry_after_s) == (0b1, "no such customer", 1.5)
    assert failure.is_permanent


async def test_of_a_batch_with_leases_that_are_lost_the_others_are_settled(
    served: Served, lending: Lending
) -> None:
    await lending.enter_items(b"a")
    await lending.enter_items(b"b")

    def work(client: Client) -> None:
        queue = client.delayed("crm")
        batch = queue.try_poll_many(2)
        assert len(batch.lock.tokens) == 2
        queue.ack(Lock("crm", batch.lock.tokens[:1]))
        with pytest.raises(LockLost, match="1 of the 2"):
            queue.ack(batch.lock)

    await with_client(served, work)
    assert [ended.delivered for ended in lending.ended] == [0b1, 0b1]


async def test_a_run_that_cannot_be_unpacked_is_refused_and_not_polled(
    served: Served, lending: Lending
) -> None:
    run = encode_run([b"a" * 100], queue="crm", compressed=False)
    await lending.enter(run[:-4] + b"\xff\xff\xff\x7f")
    assert await with_client(served, lambda client: client.delayed("crm").try_poll()) is None
    [(_, failure)] = lending.ended[0].failed
    assert failure.is_permanent


def test_an_attempt_that_was_made_is_seen_whatever_the_times_say() -> None:
    run = encode_run([b"a"], queue="crm", due_ms=NOW_MS)
    for attempt, due_ms, again in [(0, 0, False), (0, NOW_MS + 1, False), (1, NOW_MS - 5, True)]:
        leased = LeasedRun(17, NOW_MS + 1000, attempt, 0, run, due_ms)
        [one] = polled(leased, unpack(leased), Lock("crm", (17,)))
        assert one.is_redelivery == again
        assert one.scheduled_at_initially_ms <= one.scheduled_at_ms


# Leases that run out.


async def test_a_lease_that_runs_out_is_a_failed_attempt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lending = Ticking()
    await lending.enter_items(b"a", b"b")
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        nursery.start_soon(lending.pull.run, stop)
        [first] = await lending.pull.lease(KEPT, Holdings("c1"))
        assert (first.until_ms, first.attempt, first.due_ms) == (NOW_MS + 1000, 0, 0)
        with structlog.testing.capture_logs() as lines:
            await trio.sleep(1 + LATE_S)
        stop.set()
    assert [(line["event"], line["items"]) for line in lines] == [("dispatch.leases_ran_out", 2)]
    [ended] = lending.ended
    assert [(bits, failure.text) for bits, failure in ended.failed] == [(0b11, "the lease ran out")]
    assert (ended.delivered, ended.released) == (0, 0)
    [again] = await lending.pull.lease(KEPT, Holdings())
    assert again.attempt == 1
    assert await lending.pull.settle("crm", [all_delivered(first)]) == [False]
    assert await lending.pull.settle("crm", [all_delivered(again)]) == [True]


async def test_who_waits_is_given_the_items_when_the_lease_is_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lending = Ticking()
    await lending.enter_items(b"a")
    await lending.pull.lease(KEPT, Holdings())
    started = trio.current_time()
    [again] = await lending.pull.lease(LeaseWish("crm", wait_ms=60_000), Holdings())
    assert again.attempt == 1
    assert trio.current_time() - started == pytest.approx(1, abs=0.01)


async def test_a_lease_that_was_extended_or_settled_does_not_run_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lending = Ticking()
    await lending.enter_items(b"a")
    await lending.enter_items(b"b")
    kept, done = await lending.pull.lease(KEPT, Holdings())
    assert await lending.pull.extend("crm", [kept.token], 10_000) == [True]
    assert await lending.pull.settle("crm", [all_delivered(done)]) == [True]
    await trio.sleep(9)
    await lending.pull.end_late("crm")
    assert len(lending.ended) == 1
    await trio.sleep(1)
    await lending.pull.end_late("crm")
    assert [bool(ended.failed) for ended in lending.ended] == [False, True]


async def test_warm_puts_back_only_what_this_daemon_does_not_end(lending: Lending) -> None:
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(KEPT, Holdings())
    lending.now_ms += 1000 + round(2 * LATE_S * 1000)
    assert await lending.warm.expire() == {}
    lending.now_ms += MARGIN_MS
    assert await lending.warm.expire() == {"crm": 1}
    # Others may have it by now: nothing is said of it any more.
    await lending.pull.end_late("crm")
    assert (lending.ended, lending.pull.leases) == ([], 0)
    [again] = await lending.pull.lease(KEPT, Holdings())
    assert again.attempt == 0
    assert again.token != leased.token


async def test_a_store_that_is_away_is_told_later(autojump_clock: trio.testing.MockClock) -> None:
    lending = Ticking()
    await lending.enter_items(b"a")
    await lending.pull.lease(KEPT, Holdings())
    lending.away_for = 2
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        nursery.start_soon(lending.pull.run, stop)
        await trio.sleep(1 + 4 * LATE_S)
        stop.set()
    assert [bool(ended.failed) for ended in lending.ended] == [True]


async def test_a_report_that_was_not_taken_does_not_make_a_lease_endless(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lending = Ticking()
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(KEPT, Holdings())

    async def hang(queue: str, ended: Sequence[Ended]) -> list[bool]:
        # Whoever looks meanwhile finds an end of a lease that nobody has.
        await trio.sleep(2)
        await lending.pull.end_late("crm")
        raise StoreUnavailable("the store is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lending, "settle", hang)
        with pytest.raises(StoreUnavailable):
            await lending.pull.settle("crm", [all_delivered(leased)])
    await trio.sleep(LATE_S)
    await lending.pull.end_late("crm")
    assert [bool(ended.failed) for ended in lending.ended] == [True]


async def test_an_extension_that_is_overtaken_by_the_end_is_refused(
    lending: Lending, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(KEPT, Holdings())
    extend = lending.warm.extend

    async def slowly(queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        answers = await extend(queue, tokens, lease_s)
        lending.now_ms += 1000
        await lending.pull.end_late(queue)
        return answers

    monkeypatch.setattr(lending.warm, "extend", slowly)
    assert await lending.pull.extend("crm", [leased.token], 10_000) == [False]
    assert [bool(ended.failed) for ended in lending.ended] == [True]


async def test_who_only_extends_leaves_nothing_behind(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_ends, "SPARE", 10)
    lending = Ticking()
    await lending.enter_items(b"a")
    [leased] = await lending.pull.lease(KEPT, Holdings())
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        nursery.start_soon(lending.pull.run, stop)
        for _ in range(100):
            assert await lending.pull.extend("crm", [leased.token], 3_600_000) == [True]
        await trio.sleep(2 * LATE_S)
        stop.set()
    assert len(lending.pull._ends) <= 12


async def test_a_token_of_an_earlier_life_or_another_daemon_fits_nothing() -> None:
    """Each life counts from where no other did, also if the clock says the same."""
    lives: list[LeasedRun] = []
    for _ in range(2):
        lending = Lending()
        await lending.enter_items(b"a")
        lives += await lending.pull.lease(KEPT, Holdings())
    first, second = lives
    assert await lending.pull.settle("crm", [all_delivered(first)]) == [False]
    assert await lending.pull.extend("crm", [first.token], 1000) == [False]
    assert await lending.counts() == (0, 1)
    assert await lending.pull.settle("crm", [all_delivered(second)]) == [True]


async def test_a_lease_that_ran_out_or_was_lost_says_nothing_of_how_long_items_take(
    lending: Lending,
) -> None:
    await lending.enter_items(b"a")
    [late] = await lending.pull.lease(KEPT, Holdings())
    await lending.expire(1000)
    assert await lending.pull.settle("crm", [all_delivered(late)]) == [False]
    assert lending.tallies.of("crm").processing.frozen() == NOTHING
    [again] = await lending.pull.lease(KEPT, Holdings())
    lending.now_ms += 500
    assert await lending.pull.settle("crm", [all_delivered(again)]) == [True]
    assert lending.tallies.of("crm").processing.frozen().sum_s == 0.5


async def test_times_are_told_if_they_are_asked_for(lending: Lending) -> None:
    run = encode_run([b"a"], queue="crm", due_ms=NOW_MS - 7)
    slice_ = await lending.enter(run)
    [leased] = await lending.pull.lease(LeaseWish("crm"), Holdings())
    assert leased.due_ms is None
    assert await lending.pull.settle("crm", [all_delivered(leased)]) == [True]
    assert slice_.due_ms == 0
    await lending.enter_items(b"b")
    [leased] = await lending.pull.lease(KEPT, Holdings())
    assert leased.due_ms == 0
