"""Token buckets on trio's clock, limits on sends at once, and the buckets that queues share."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.workers.rate import Destinations, SendLimit, TokenBucket


async def taken_at(bucket: TokenBucket, *batches: int) -> list[float]:
    """When each batch may go, one after the other, in seconds from now."""
    began = trio.current_time()
    times = []
    for items in batches:
        await bucket.take(items)
        times.append(round(trio.current_time() - began, 3))
    return times


async def test_a_burst_goes_at_once_and_the_rest_at_the_rate(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(10)
    assert await taken_at(bucket, 5, 5, 5, 5, 1) == [0, 0, 0.5, 1, 1.1]


async def test_a_pause_saves_up_no_more_than_the_burst(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(10)
    await bucket.take(10)
    await trio.sleep(1000)
    assert await taken_at(bucket, 10, 1) == [0, 0.1]


async def test_a_batch_bigger_than_the_burst_leaves_a_debt(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(10)
    # The second waits for the debt of 90 and for a full bucket: 100 items later, 10 s.
    assert await taken_at(bucket, 100, 100, 1) == [0, 10, 19.1]


async def test_a_rate_below_one_item_a_second_still_lets_items_through(
    autojump_clock: MockClock,
) -> None:
    assert await taken_at(TokenBucket(0.1), 1, 1, 1) == [0, 10, 20]


@pytest.mark.parametrize("rate", [0.37, 3, 977.7, 1e9])
async def test_the_rate_holds_in_the_mean(autojump_clock: MockClock, rate: float) -> None:
    # Where floating seconds are coarse a bucket could wait for tokens that never quite come.
    autojump_clock.jump(1e6)
    bucket = TokenBucket(rate)
    began = trio.current_time()
    sizes = [1, 7, 2, 30, 1, 1, 500, 3] * 10
    await bucket.take(sizes[0])
    for items in sizes[1:]:
        await bucket.take(items)
    owed_s = (sum(sizes) - bucket.burst - max(sizes)) / rate
    took_s = trio.current_time() - began
    assert took_s >= owed_s * (1 - 1e-6)
    assert took_s <= sum(sizes) / rate + 1e-3


async def test_no_rate_is_no_limit_and_no_turn_of_the_loop() -> None:
    bucket = TokenBucket(0)
    with trio.CancelScope() as scope:
        scope.cancel()
        for _ in range(1000):
            await bucket.take(10**9)
    assert not scope.cancelled_caught, "it was a checkpoint"


async def test_whoever_comes_first_goes_first(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(10)
    await bucket.take(10)
    went: list[tuple[int, float]] = []
    began = trio.current_time()

    async def waiter(items: int) -> None:
        await bucket.take(items)
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
    bucket = TokenBucket(10)
    await bucket.take(10)
    began = trio.current_time()
    went: list[float] = []

    async def impatient(items: int) -> None:
        with trio.move_on_after(0.2):
            await bucket.take(items)

    async def patient() -> None:
        await bucket.take(3)
        went.append(round(trio.current_time() - began, 3))

    async with trio.open_nursery() as nursery:
        # The first is cancelled at the head of the line, the second in it.
        for waiter in (lambda: impatient(9), lambda: impatient(9), patient):
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
    assert went == [0.3]
    await trio.sleep(0.7)
    assert await taken_at(bucket, 7, 1) == [0, 0.1]


async def test_a_new_rate_counts_for_those_that_wait(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(1)
    await bucket.take(1)
    went: list[float] = []
    began = trio.current_time()

    async def waiter() -> None:
        await bucket.take(1)
        went.append(round(trio.current_time() - began, 3))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(waiter)
            await wait_all_tasks_blocked()
        await trio.sleep(0.5)
        bucket.change(10)
        await wait_all_tasks_blocked()
        await trio.sleep(0.1)
        bucket.change(0)
    assert went == [0.55, 0.6, 0.6]


async def test_a_slower_rate_does_not_forget_the_debt(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(10)
    await bucket.take(30)
    bucket.change(1)
    assert await taken_at(bucket, 1) == [21]


async def test_a_rate_after_none_begins_with_a_full_bucket(autojump_clock: MockClock) -> None:
    bucket = TokenBucket(0)
    await bucket.take(10**6)
    bucket.change(10)
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
    first = destinations.join("a", "crm", 100)
    assert destinations.join("b", "crm", 20) is first
    assert destinations.join("c", "crm", 0) is first
    assert destinations.join("d", "search", 7) is not first
    assert first.rate == 20


def test_the_burst_is_a_seconds_worth_and_an_item_at_least() -> None:
    destinations = Destinations()
    assert destinations.join("a", "crm", 100).burst == 100
    assert destinations.join("b", "crm", 20).burst == 20
    assert destinations.join("c", "slow", 0.5).burst == 1


def test_a_reload_changes_the_shared_bucket() -> None:
    destinations = Destinations()
    bucket = destinations.join("a", "crm", 100)
    destinations.join("b", "crm", 20)
    destinations.join("b", "crm", 200)
    assert bucket.rate == 100
    destinations.join("a", "elsewhere", 5)
    assert bucket.rate == 200
    destinations.leave("b")
    assert list(destinations.buckets) == ["elsewhere"]
    destinations.leave("unheard of")


async def test_a_shared_bucket_holds_its_rate_over_all_queues(autojump_clock: MockClock) -> None:
    destinations = Destinations()
    buckets = [destinations.join(name, "crm", 10) for name in "ab"]
    began = trio.current_time()

    async def worker(bucket: TokenBucket) -> None:
        for _ in range(6):
            await bucket.take(5)

    async with trio.open_nursery() as nursery:
        for bucket in buckets:
            nursery.start_soon(worker, bucket)
    assert round(trio.current_time() - began, 3) == 5
