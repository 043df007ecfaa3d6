"""Token buckets on trio's clock, limits on sends at once, and the buckets that queues share."""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.rates import NO_LIMIT, Rate, parse_rate
from actors.workers.rate import Destinations, SendLimit, TokenBucket


def bucket_of(rate: object, name: str = "bucket") -> TokenBucket:
    bucket = TokenBucket(name)
    bucket.change(parse_rate(rate))
    return bucket


async def take(bucket: TokenBucket, items: int) -> None:
    """Takes so many, in as many turns as the bucket wants."""

    async def take_all(allowed: int) -> int:
        nonlocal items
        items -= allowed
        return allowed

    while items:
        await bucket.take_turn(items, take_all)


async def taken_at(bucket: TokenBucket, *batches: int) -> list[float]:
    """When each batch may go, one after the other, in seconds from now."""
    began = trio.current_time()
    times = []
    for items in batches:
        await take(bucket, items)
        times.append(round(trio.current_time() - began, 3))
    return times


async def test_a_burst_goes_at_once_and_the_rest_at_the_rate(autojump_clock: MockClock) -> None:
    assert await taken_at(bucket_of(10), 5, 5, 5, 5, 1) == [0, 0, 0.5, 1, 1.1]
    assert await taken_at(bucket_of("10/s burst 20"), 5, 15, 5, 5, 1) == [0, 0, 0.5, 1, 1.1]
    assert await taken_at(bucket_of("100/10s"), 50, 50, 5, 5) == [0, 0, 0.5, 1]
    assert await taken_at(bucket_of("10/s burst 1"), 1, 1, 1) == [0, 0.1, 0.2]


async def test_a_pause_saves_up_no_more_than_the_burst(autojump_clock: MockClock) -> None:
    bucket = bucket_of(10)
    await take(bucket, 10)
    await trio.sleep(1000)
    assert await taken_at(bucket, 10, 1) == [0, 0.1]


async def test_a_turn_waits_for_a_seconds_worth_and_takes_more_if_there_is_more(
    autojump_clock: MockClock,
) -> None:
    bucket = bucket_of("10/s burst 100")
    allowed: list[int] = []

    async def take_all(items: int) -> int:
        allowed.append(items)
        return items

    for _ in range(3):
        await bucket.take_turn(75, take_all)
    assert allowed == [75, 25, 10]
    assert round(trio.current_time(), 3) == 1
    await trio.sleep(3)
    await bucket.take_turn(500, take_all)
    assert allowed[-1] == 30


async def test_what_a_turn_did_not_use_stays(autojump_clock: MockClock) -> None:
    bucket = bucket_of(10)

    async def take_three(items: int) -> int:
        assert items == 10
        return 3

    async def fail(items: int) -> int:
        raise ZeroDivisionError

    await bucket.take_turn(20, take_three)
    with pytest.raises(ZeroDivisionError):
        await bucket.take_turn(20, fail)
    assert await taken_at(bucket, 10, 1) == [0, 0.1]


async def test_a_rate_below_one_item_a_second_still_lets_items_through(
    autojump_clock: MockClock,
) -> None:
    assert await taken_at(bucket_of(0.1), 1, 1, 1) == [0, 10, 20]
    assert await taken_at(bucket_of("24/d"), 1, 1, 1) == [0, 3600, 7200]


@pytest.mark.parametrize("rate", [0.37, 3, 977.7, 1e9, "600/min"])
async def test_the_rate_holds_in_the_mean(autojump_clock: MockClock, rate: object) -> None:
    # Where floating seconds are coarse a bucket could wait for tokens that never quite come.
    autojump_clock.jump(1e6)
    bucket = bucket_of(rate)
    began = trio.current_time()
    sizes = [1, 7, 2, 30, 1, 1, 500, 3] * 10
    for items in sizes:
        await take(bucket, items)
    owed_s = (sum(sizes) - bucket.rate.at_once) / bucket.rate.refill
    took_s = trio.current_time() - began
    assert took_s >= owed_s * (1 - 1e-6)
    assert took_s <= sum(sizes) / bucket.rate.refill + 1e-3


@given(
    st.sampled_from(["7/min", "600/min", "20/11s", "40/20s burst 15", "3/min burst 3", "2/h"]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 30)), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_no_period_sees_more_than_the_quota(
    written: str, demands: list[tuple[float, int]], random: Random
) -> None:
    """`demands`: a pause, as a share of the period, and what then comes at once."""
    rate = parse_rate(written)
    went: list[tuple[float, int]] = []

    async def take_all(allowed: int) -> int:
        went.append((trio.current_time(), allowed))
        return allowed

    async def main() -> None:
        bucket = bucket_of(written)
        for pause, items in demands:
            await trio.sleep(pause * rate.period_s)
            for _ in range(items):
                if random.random() < 0.3:
                    await bucket.reserve()
                    await take_all(1)
                else:
                    await bucket.take_turn(random.randint(1, 9), take_all)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    for began, _ in went:
        within = [items for at, items in went if began <= at < began + rate.period_s - 0.001]
        assert sum(within) <= rate.count


async def test_no_rate_is_no_limit_and_no_turn_of_the_loop() -> None:
    bucket = TokenBucket("bucket")
    with trio.CancelScope() as scope:
        scope.cancel()
        for _ in range(1000):
            await take(bucket, 10**9)
            await bucket.reserve()
    assert not scope.cancelled_caught, "it was a checkpoint"


async def test_whoever_comes_first_goes_first(autojump_clock: MockClock) -> None:
    bucket = bucket_of(10)
    await take(bucket, 10)
    went: list[tuple[int, float]] = []
    began = trio.current_time()

    async def waiter(items: int) -> None:
        await take(bucket, items)
        went.append((items, round(trio.current_time() - began, 3)))

    async with trio.open_nursery() as nursery:
        for items in (8, 1, 4):
            nursery.start_soon(waiter, items)
            await wait_all_tasks_blocked()
        assert bucket.waiting == 3
        await trio.sleep(0.5)
        nursery.start_soon(waiter, 2)
    assert went == [(8, 0.8), (1, 0.9), (4, 1.3), (2, 1.5)]
    assert bucket.waiting == 0


async def test_a_cancelled_waiter_gives_up_its_place_and_takes_nothing(
    autojump_clock: MockClock,
) -> None:
    bucket = bucket_of(10)
    await take(bucket, 10)
    began = trio.current_time()
    went: list[float] = []

    async def impatient(items: int) -> None:
        with trio.move_on_after(0.2):
            await take(bucket, items)

    async def patient() -> None:
        await take(bucket, 3)
        went.append(round(trio.current_time() - began, 3))

    async with trio.open_nursery() as nursery:
        # The first is cancelled at the head of the line, the second in it.
        for waiter in (lambda: impatient(9), lambda: impatient(9), patient):
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
    assert went == [0.3]
    await trio.sleep(0.7)
    assert await taken_at(bucket, 7, 1) == [0, 0.1]


async def test_a_reservation_overtakes_the_line(autojump_clock: MockClock) -> None:
    bucket = bucket_of(1)
    await take(bucket, 1)
    went: list[tuple[str, float]] = []

    async def waiter(name: str, wait: Callable[[], Awaitable[None]]) -> None:
        await wait()
        went.append((name, round(trio.current_time(), 3)))

    async def cancelled() -> None:
        with trio.move_on_after(0.5):
            await bucket.reserve()

    async with trio.open_nursery() as nursery:
        for name in ("first in line", "second in line"):
            nursery.start_soon(waiter, name, partial(take, bucket, 1))
            await wait_all_tasks_blocked()
        nursery.start_soon(cancelled)
        await wait_all_tasks_blocked()
        for name in ("reserved", "reserved after it"):
            nursery.start_soon(waiter, name, bucket.reserve)
            await wait_all_tasks_blocked()
    # The reservations had come behind the one that was cancelled; the line gets its token.
    assert sorted((at, name) for name, at in went) == [
        (2, "reserved"),
        (3, "first in line"),
        (3, "reserved after it"),
        (4, "second in line"),
    ]


async def test_a_new_rate_counts_for_those_that_wait(autojump_clock: MockClock) -> None:
    bucket = bucket_of(1)
    await take(bucket, 1)
    went: list[float] = []
    began = trio.current_time()

    async def waiter() -> None:
        await take(bucket, 1)
        went.append(round(trio.current_time() - began, 3))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
        await trio.sleep(0.5)
        bucket.change(Rate(10))
        await wait_all_tasks_blocked()
        await trio.sleep(0.1)
        bucket.change(NO_LIMIT)
    assert went == [0.55, 0.6, 0.6]


async def test_a_new_rate_counts_for_reservations(autojump_clock: MockClock) -> None:
    bucket = bucket_of("1/h")
    await take(bucket, 1)
    went: list[float] = []

    async def waiter() -> None:
        await bucket.reserve()
        went.append(round(trio.current_time(), 3))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
        await trio.sleep(36)
        bucket.change(Rate(1))
        await wait_all_tasks_blocked()
        await trio.sleep(1.5)
        bucket.change(NO_LIMIT)
    # A hundredth of a token had come. The others have to wait for another second each.
    assert went == [36.99, 37.5, 37.5]


async def test_a_slower_rate_does_not_forget_the_debt(autojump_clock: MockClock) -> None:
    bucket = bucket_of(10)
    await take(bucket, 10)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(bucket.reserve)
        await wait_all_tasks_blocked()
        bucket.change(Rate(1))
        assert await taken_at(bucket, 1) == [21]


async def test_a_rate_after_none_begins_with_a_full_bucket(autojump_clock: MockClock) -> None:
    bucket = TokenBucket("bucket")
    await take(bucket, 10**6)
    bucket.change(Rate(10))
    assert await taken_at(bucket, 10, 1) == [0, 0.1]


# Sends at once.


class Senders:
    def __init__(self, limit: SendLimit) -> None:
        self.limit = limit
        self.done = trio.Event()
        self.inside: list[str] = []

    async def send(self, name: str) -> None:
        async with self.limit:
            self.inside.append(name)
            await self.done.wait()


async def test_no_more_than_the_limit_are_inside() -> None:
    senders = Senders(SendLimit(2))
    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(senders.send, name)
            await wait_all_tasks_blocked()
        assert senders.inside == ["a", "b"]
        assert (senders.limit.inside, senders.limit.waiting) == (2, 2)
        senders.done.set()
    assert sorted(senders.inside) == ["a", "b", "c", "d"]
    assert (senders.limit.inside, senders.limit.waiting) == (0, 0)


async def test_a_place_that_becomes_free_goes_to_whoever_waits_longest() -> None:
    limit = SendLimit(1)
    went: list[str] = []

    async def sender(name: str) -> None:
        async with limit:
            went.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        async with limit:
            for name in "abcd":
                nursery.start_soon(sender, name)
                await wait_all_tasks_blocked()
        # The place is a's already, although a has not had its turn yet.
        await sender("late")
    assert went == ["a", "b", "c", "d", "late"]


async def test_no_limit_lets_all_in() -> None:
    senders = Senders(SendLimit(0))
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(senders.send, str(number))
        await wait_all_tasks_blocked()
        assert len(senders.inside) == 100
        senders.done.set()


async def test_a_changed_limit_lets_in_or_keeps_out() -> None:
    limit = SendLimit(1)
    groups = [Senders(limit) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for group in groups:
            for name in "ab":
                nursery.start_soon(group.send, name)
            await wait_all_tasks_blocked()
        assert (limit.inside, limit.waiting) == (1, 5)
        limit.change(4)
        await wait_all_tasks_blocked()
        assert [len(group.inside) for group in groups] == [2, 2, 0]
        limit.change(2)
        groups[0].done.set()
        await wait_all_tasks_blocked()
        assert [len(group.inside) for group in groups] == [2, 2, 0]
        groups[1].done.set()
        await wait_all_tasks_blocked()
        assert [len(group.inside) for group in groups] == [2, 2, 2]
        groups[2].done.set()
    assert (limit.inside, limit.waiting) == (0, 0)


async def test_a_place_is_given_back_by_whoever_is_cancelled_or_fails() -> None:
    limit = SendLimit(1)
    senders = Senders(limit)
    async with trio.open_nursery() as holding:
        holding.start_soon(senders.send, "holder")
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as waiting:
            waiting.start_soon(senders.send, "cancelled")
            await wait_all_tasks_blocked()
            waiting.cancel_scope.cancel()
        assert (limit.inside, limit.waiting) == (1, 0)
        async with trio.open_nursery() as waiting:
            waiting.start_soon(senders.send, "let in and cancelled at once")
            await wait_all_tasks_blocked()
            senders.done.set()
            await wait_all_tasks_blocked()
            waiting.cancel_scope.cancel()
    assert limit.inside == 0
    with pytest.raises(ZeroDivisionError):
        async with limit:
            raise ZeroDivisionError
    assert limit.inside == 0


async def test_one_that_is_let_in_while_it_is_cancelled_leaves_no_place_taken() -> None:
    limit = SendLimit(1)
    async with trio.open_nursery() as nursery:
        senders = Senders(limit)
        nursery.start_soon(senders.send, "holder")
        await wait_all_tasks_blocked()
        nursery.start_soon(senders.send, "next")
        await wait_all_tasks_blocked()
        # Let in, and cancelled before it has had its turn.
        limit.change(2)
        nursery.cancel_scope.cancel()
    assert (limit.inside, limit.waiting) == (0, 0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(1, 3))
def test_the_limit_holds_and_everyone_is_let_in(pauses: list[int], most: int) -> None:
    async def main() -> None:
        limit = SendLimit(most)
        done = 0

        async def sender(pause: int) -> None:
            nonlocal done
            async with limit:
                assert limit.inside <= most
                await trio.sleep(pause)
            done += 1

        async with trio.open_nursery() as nursery:
            for pause in pauses:
                nursery.start_soon(sender, pause)
        assert (done, limit.inside) == (len(pauses), 0)

    trio.run(main, clock=MockClock(autojump_threshold=0))


# What queues share.


def test_queues_of_one_destination_share_the_smallest_rate() -> None:
    destinations = Destinations()
    first = destinations.join("a", "crm", Rate(100))
    assert destinations.join("b", "crm", Rate(1000, 60)) is first
    assert destinations.join("c", "crm", NO_LIMIT) is first
    assert destinations.join("d", "search", Rate(7)) is not first
    assert first.items.rate == Rate(1000, 60)
    destinations.join("e", "crm", Rate(1000, 60, burst=5))
    assert first.items.rate == Rate(1000, 60, burst=5)


def test_items_and_requests_are_limited_apart() -> None:
    destinations = Destinations()
    rate = destinations.join("a", "crm", Rate(100))
    assert (rate.items.rate, rate.requests.rate) == (Rate(100), NO_LIMIT)
    destinations.join("b", "crm", Rate(5, 1, "requests"))
    assert (rate.items.rate, rate.requests.rate) == (Rate(100), Rate(5, 1, "requests"))
    destinations.join("a", "crm", Rate(2, 1, "requests"))
    assert (rate.items.rate, rate.requests.rate) == (NO_LIMIT, Rate(2, 1, "requests"))
    destinations.join("c", "elsewhere", NO_LIMIT)
    assert not destinations.rates["elsewhere"].is_limited
    assert rate.is_limited


def test_a_reload_changes_the_shared_bucket() -> None:
    destinations = Destinations()
    rate = destinations.join("a", "crm", Rate(100))
    destinations.join("b", "crm", Rate(20))
    destinations.join("b", "crm", Rate(200))
    assert rate.items.rate == Rate(100)
    destinations.join("a", "elsewhere", Rate(5))
    assert rate.items.rate == Rate(200)
    destinations.leave("b")
    assert list(destinations.rates) == ["elsewhere"]
    destinations.leave("unheard of")


async def test_a_shared_bucket_holds_its_rate_over_all_queues(autojump_clock: MockClock) -> None:
    destinations = Destinations()
    rates = [destinations.join(name, "crm", Rate(10)) for name in "ab"]
    began = trio.current_time()

    async def worker(bucket: TokenBucket) -> None:
        for _ in range(6):
            await take(bucket, 5)

    async with trio.open_nursery() as nursery:
        for rate in rates:
            nursery.start_soon(worker, rate.items)
    assert round(trio.current_time() - began, 3) == 5


async def test_a_turn_takes_items_and_one_request(autojump_clock: MockClock) -> None:
    destinations = Destinations()
    destinations.join("a", "crm", Rate(10))
    rate = destinations.join("b", "crm", Rate(1, 2, "requests"))
    went: list[tuple[float, int]] = []

    async def take_all(items: int) -> int:
        went.append((round(trio.current_time(), 3), items))
        return items

    async def take_nothing(_: int) -> int:
        return 0

    await rate.take_turn(4, take_nothing)
    for _ in range(4):
        await rate.take_turn(4, take_all)
    # Requests decide: a full bucket of ten items would last for two at once.
    assert went == [(0, 4), (2, 4), (4, 4), (6, 4)]
    for _ in range(2):
        await rate.take_turn(100, take_all)
    assert went[4:] == [(8, 10), (10, 10)]
