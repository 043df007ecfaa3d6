"""What every warm queue must do: order, limits, flows, and queues side by side."""

from dataclasses import replace

import pytest

from actors.model.slices import InCold, ItemError, Slice
from actors.ports.tiers import Ending, Fill, Limits
from tests.conformance.warm_rig import (
    EPOCH,
    LEASE_S,
    PLENTY,
    START_MS,
    Checks,
    Rig,
    in_row,
    lease_all,
    part,
    places,
    views,
    whole,
)

CHECKS = Checks()


# Order.


@CHECKS
async def order_is_priority_then_first_due_then_run_id_then_item(rig: Rig) -> None:
    late = rig.run(1, 2, priority=5, enqueued_ms=START_MS + 1)
    early = rig.run(4, 2, priority=5)
    delayed = rig.run(3, 2, priority=5, enqueued_ms=START_MS - 9, due_ms=START_MS)
    urgent = rig.run(9, 2, priority=0, enqueued_ms=START_MS + 2)
    slices = [part(early, 1, 2), whole(late), part(early, 0, 1), whole(delayed), whole(urgent)]
    await rig.warm.enter("q", slices, PLENTY)
    leased = await lease_all(rig.warm)
    assert places(leased) == [(9, 0, 2), (3, 0, 2), (4, 0, 1), (4, 1, 2), (1, 0, 2)]


@CHECKS
async def what_comes_later_and_is_more_urgent_goes_first(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 4))], PLENTY)
    [first] = await rig.warm.lease("q", 1, 10**9, LEASE_S)
    await rig.warm.enter("q", [whole(rig.run(2, 2, priority=1))], PLENTY)
    assert places([first]) == [(1, 0, 1)]
    assert places(await lease_all(rig.warm)) == [(2, 0, 2), (1, 1, 4)]


@CHECKS
async def slice_comes_out_as_it_went_in(rig: Rig) -> None:
    errors = (ItemError(1, START_MS, "refused: ü"), ItemError(2, START_MS + 5, ""))
    owner = InCold(b"r" * 16, EPOCH)
    run = rig.run(7, 100, flow="f", owner=owner, due_ms=START_MS)
    entered = Slice(run, 1 << 99 | 0b1010, attempt=2, due_ms=rig.now_ms(), errors=errors)
    await rig.warm.enter("q", [entered], PLENTY)
    [leased] = await lease_all(rig.warm)
    assert views([leased]) == views([entered])
    assert leased.slice.errors == errors
    assert leased.slice.run.owner == owner
    assert leased.slice.run.head == run.head
    assert bytes(leased.slice.run.data) == bytes(run.data)
    assert leased.until_ms == rig.now_ms() + round(LEASE_S * 1000)


# Limits of a lease.


@CHECKS
async def long_slice_is_cut_and_the_rest_stays(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 10)), whole(rig.run(2, 10))], PLENTY)
    assert places(await rig.warm.lease("q", 4, 10**9, LEASE_S)) == [(1, 0, 4)]
    assert places(await rig.warm.lease("q", 9, 10**9, LEASE_S)) == [(1, 4, 10), (2, 0, 3)]
    fill = await rig.warm.fill("q")
    assert (fill.items, fill.leased, fill.waiting) == (20, 13, 7)


@CHECKS
async def slice_with_holes_is_cut_by_items(rig: Rig) -> None:
    await rig.warm.enter("q", [Slice(rig.run(1, 64), 1 << 63 | 0b10110)], PLENTY)
    [leased] = await rig.warm.lease("q", 3, 10**9, LEASE_S)
    assert leased.slice.bits == 0b10110
    [rest] = await lease_all(rig.warm)
    assert rest.slice.bits == 1 << 63


@CHECKS
async def bytes_cut_by_the_items_share(rig: Rig) -> None:
    small, big = rig.run(1, 10, item_size=50), rig.run(2, 10, item_size=500)
    await rig.warm.enter("q", [whole(small), whole(big)], PLENTY)
    size = whole(small).bytes + 3 * big.item_bytes
    assert places(await rig.warm.lease("q", 100, size - 1, LEASE_S)) == [(1, 0, 10), (2, 0, 2)]
    assert places(await rig.warm.lease("q", 100, 3 * big.item_bytes, LEASE_S)) == [(2, 2, 5)]


@CHECKS
async def one_item_is_leased_however_big_it_is(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 3, item_size=5000))], PLENTY)
    assert places(await rig.warm.lease("q", 10, 1, LEASE_S)) == [(1, 0, 1)]


@CHECKS
async def nothing_is_passed_over_because_it_is_big(rig: Rig) -> None:
    small, big = rig.run(1, 1), rig.run(2, 1, item_size=5000)
    await rig.warm.enter("q", [whole(small), whole(big), whole(rig.run(3, 1))], PLENTY)
    assert places(await rig.warm.lease("q", 10, 1000, LEASE_S)) == [(1, 0, 1)]
    assert places(await rig.warm.lease("q", 10, 1000, LEASE_S)) == [(2, 0, 1)]


@CHECKS
async def tokens_are_never_used_again(rig: Rig) -> None:
    seen = set()
    for number in range(5):
        await rig.warm.enter("q", [whole(rig.run(number, 2))], PLENTY)
        for leased in [*await rig.warm.lease("q", 1, 10**9, LEASE_S), *await lease_all(rig.warm)]:
            seen.add(leased.token)
            await rig.warm.end("q", [Ending(leased.token)])
    assert len(seen) == 10


# Limits of a queue.


@CHECKS
async def run_bigger_than_the_room_enters_slice_by_slice(rig: Rig) -> None:
    limits = Limits(4, 10**9)
    rest = [whole(rig.run(1, 10)), whole(rig.run(2, 1))]
    seen = []
    while rest:
        rest, fill = await rig.warm.enter("q", rest, limits)
        assert fill.items <= 4
        leased = await lease_all(rig.warm)
        seen += places(leased)
        await rig.warm.end("q", [Ending(each.token) for each in leased])
    assert seen == [(1, 0, 4), (1, 4, 8), (1, 8, 10), (2, 0, 1)]
    assert await rig.warm.fill("q") == Fill()


@CHECKS
async def rest_is_in_order_and_what_follows_does_not_overtake(rig: Rig) -> None:
    big, small = rig.run(1, 5, item_size=100), rig.run(2, 1, item_size=1)
    limits = Limits(100, 3 * big.item_bytes + small.item_bytes)
    entered = await rig.warm.enter("q", [whole(big), whole(small)], limits)
    assert places(entered.rest) == [(1, 3, 5), (2, 0, 1)]
    assert entered.fill == rig.fill(3, 3 * big.item_bytes)


@CHECKS
async def leased_and_scheduled_count_against_the_limits(rig: Rig) -> None:
    limits = Limits(4, 10**9)
    run = rig.run(1, 4)
    soon = replace(part(run, 2, 4), due_ms=rig.now_ms() + 1000)
    await rig.warm.enter("q", [part(run, 0, 2), soon], limits)
    await lease_all(rig.warm)
    entered = await rig.warm.enter("q", [whole(rig.run(2, 1))], limits)
    assert places(entered.rest) == [(2, 0, 1)]
    assert entered.fill == rig.fill(4, 4 * run.item_bytes, scheduled=2, leased=2)


@CHECKS
async def full_queue_takes_nothing_and_a_lower_limit_throws_nothing_out(rig: Rig) -> None:
    run = rig.run(1, 4)
    await rig.warm.enter("q", [whole(run)], PLENTY)
    for limits in (Limits(2, 10**9), Limits(10**9, 2 * run.item_bytes), Limits(0, 0)):
        entered = await rig.warm.enter("q", [whole(rig.run(2, 1))], limits)
        assert (len(entered.rest), entered.fill.items) == (1, 4)


@CHECKS
async def empty_queue_takes_one_item_of_any_size(rig: Rig) -> None:
    run = rig.run(1, 3, item_size=5000)
    limits = Limits(10, 100)
    entered = await rig.warm.enter("q", [whole(run)], limits)
    assert places(entered.rest) == [(1, 1, 3)]
    assert entered.fill == rig.fill(1, run.item_bytes)
    assert places((await rig.warm.enter("q", entered.rest, limits)).rest) == [(1, 1, 3)]
    nothing = await rig.warm.enter("empty", [whole(run)], Limits(0, 10**9))
    assert nothing.fill == Fill()


@CHECKS
async def slice_without_items_is_refused(rig: Rig) -> None:
    run = rig.run(1, 3)
    with pytest.raises(ValueError, match="without items"):
        await rig.warm.enter("q", [whole(run), Slice(run, 0)], PLENTY)
    assert await rig.warm.fill("q") == Fill()


# Scheduled.


@CHECKS
async def scheduled_come_due_in_order(rig: Rig) -> None:
    now_ms = rig.now_ms()
    slices = [
        whole(rig.run(1, 1), due_ms=now_ms + 2000),
        whole(rig.run(2, 1), due_ms=now_ms + 1000),
        whole(rig.run(3, 1, priority=0), due_ms=now_ms + 2000),
        whole(rig.run(4, 1), due_ms=now_ms),
    ]
    entered = await rig.warm.enter("q", slices, PLENTY)
    assert (entered.fill.scheduled, entered.fill.waiting) == (3, 1)
    assert places(await lease_all(rig.warm)) == [(4, 0, 1)]
    await rig.advance(999)
    assert await lease_all(rig.warm) == []
    await rig.advance(1)
    assert (await rig.warm.fill("q")).scheduled == 2
    assert places(await lease_all(rig.warm)) == [(2, 0, 1)]
    await rig.advance(1000)
    # Both are due now, and the order is that of all that is due.
    assert places(await lease_all(rig.warm)) == [(3, 0, 1), (1, 0, 1)]


# Flows.


@CHECKS
async def excepted_flows_stay_where_they_are(rig: Rig) -> None:
    flows = "abcab"
    runs = [rig.run(n, 2, flow=flow) for n, flow in enumerate(flows, 1)]
    await rig.warm.enter("q", [whole(run) for run in runs], PLENTY)
    leased = await rig.warm.lease("q", 3, 10**9, LEASE_S, frozenset("a"))
    assert places(leased) == [(2, 0, 2), (3, 0, 1)]
    leased = await rig.warm.lease("q", 10, 10**9, LEASE_S, frozenset("ac"))
    assert places(leased) == [(5, 0, 2)]
    assert await rig.warm.lease("q", 10, 10**9, LEASE_S, frozenset("abc")) == []
    assert places(await lease_all(rig.warm)) == [(1, 0, 2), (3, 1, 2), (4, 0, 2)]


# Queues.


@CHECKS
async def queues_know_nothing_of_each_other(rig: Rig) -> None:
    run, cold = rig.run(1, 3), rig.run(2, 4, owner=in_row(2))
    await rig.warm.enter("a", [whole(run)], Limits(3, 10**9))
    entered = await rig.warm.enter("b", [whole(cold)], Limits(4, 10**9))
    assert entered.rest == []
    await rig.warm.lease("a", 1, 10**9, 1.0)
    await rig.warm.lease("b", 2, 10**9, 2.0)
    assert await rig.warm.fills() == {
        "a": rig.fill(3, whole(run).bytes, leased=1),
        "b": Fill(4, whole(cold).bytes, leased=2, cold_items=4),
    }
    await rig.advance(1000)
    assert await rig.warm.expire() == {"a": 1}
    assert places(await rig.warm.withdraw("a")) == [(1, 0, 1), (1, 1, 3)]
    assert set(await rig.warm.fills()) == {"b"}
    assert await rig.warm.fill("a") == await rig.warm.fill("unknown") == Fill()
    assert await lease_all(rig.warm, "unknown") == []
    assert await rig.warm.withdraw("unknown") == []
