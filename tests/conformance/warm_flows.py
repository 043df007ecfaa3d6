"""What every warm queue must say of what it holds, by flow, for the metrics.

A shared store may say it up to 5 s late: its rig waits in `settle` until it does not.
"""

from actors.model.slices import InCold, Slice, item_bits
from actors.ports.tiers import Ending, WarmFlow
from tests.conformance.warm_rig import (
    LEASE_S,
    PLENTY,
    START_MS,
    Checks,
    Rig,
    in_row,
    lease_all,
    whole,
)

CHECKS = Checks()


async def flows(rig: Rig) -> dict[tuple[str, str], tuple[int, int | None]]:
    await rig.settle()
    return {
        (flow.queue, flow.flow): (flow.waiting, flow.oldest_ms) for flow in await rig.warm.flows()
    }


@CHECKS
async def flows_count_what_waits_due_or_not(rig: Rig) -> None:
    assert await flows(rig) == {}
    later = whole(rig.run(2, 3, flow="f", enqueued_ms=START_MS - 7), due_ms=rig.now_ms() + 10**6)
    slices = [whole(rig.run(1, 2, flow="f")), later, whole(rig.run(3, 1, flow="g"))]
    await rig.warm.enter("q", slices, PLENTY)
    await rig.warm.enter("r", [whole(rig.run(4, 9, flow="f"))], PLENTY)
    assert await flows(rig) == {
        ("q", "f"): (5, START_MS - 7),
        ("q", "g"): (1, START_MS),
        ("r", "f"): (9, START_MS),
    }


@CHECKS
async def flows_do_not_count_what_is_leased_until_it_comes_back(rig: Rig) -> None:
    old = whole(rig.run(1, 4, flow="f", enqueued_ms=START_MS - 50))
    await rig.warm.enter("q", [old, whole(rig.run(2, 2, flow="f"))], PLENTY)
    [first] = await rig.warm.lease("q", 3, 10**9, LEASE_S)
    assert await flows(rig) == {("q", "f"): (3, START_MS - 50)}
    [second] = await rig.warm.lease("q", 1, 10**9, LEASE_S)
    assert await flows(rig) == {("q", "f"): (2, START_MS)}
    again = Slice(first.slice.run, item_bits(0, 1), attempt=1, due_ms=rig.now_ms() + 10**6)
    await rig.warm.end("q", [Ending(first.token, (again,)), Ending(second.token)])
    assert await flows(rig) == {("q", "f"): (3, START_MS - 50)}
    await rig.warm.end("q", [Ending(one.token) for one in await lease_all(rig.warm)])
    assert await flows(rig) == {("q", "f"): (1, START_MS - 50)}


@CHECKS
async def flows_count_what_is_the_cold_stores_leased_or_not(rig: Rig) -> None:
    run = rig.run(1, 5, flow="f", owner=in_row(1))
    own = rig.run(2, 2, flow="f")
    own_cold = 2 if isinstance(own.owner, InCold) else 0
    await rig.warm.enter("q", [whole(run), whole(own)], PLENTY)
    [leased] = await rig.warm.lease("q", 5, 10**9, LEASE_S)
    await rig.settle()
    [found] = await rig.warm.flows()
    assert found[3:] == (2, 5 + own_cold, START_MS)
    await rig.warm.end("q", [Ending(leased.token)])
    await rig.settle()
    [found] = await rig.warm.flows()
    assert found[3:] == (2, own_cold, START_MS)


@CHECKS
async def flows_forget_what_was_withdrawn(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 5, flow="f"))], PLENTY)
    await rig.warm.enter("q", [whole(rig.run(2, 5, flow="g"))], PLENTY)
    await rig.warm.withdraw("q", "f")
    assert await flows(rig) == {("q", "g"): (5, START_MS)}
    await rig.warm.withdraw("q")
    assert await flows(rig) == {}


@CHECKS
async def flows_tell_actions_apart(rig: Rig) -> None:
    run = rig.run(1, 5, flow="f")
    await rig.warm.enter("q", [whole(run)], PLENTY)
    await rig.settle()
    [found] = await rig.warm.flows()
    from_cold = (await rig.warm.fill("q")).cold_items
    assert found == WarmFlow("q", "f", run.head.action, 5, from_cold, START_MS)
