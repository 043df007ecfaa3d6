"""What every warm queue must do: whoever waits is woken, for a reason, in time."""

import trio

from actors.ports.tiers import Ending
from tests.conformance.warm_rig import (
    LEASE_S,
    PLENTY,
    Checks,
    Rig,
    comes,
    lease_all,
    part,
    places,
    waiting,
    whole,
)

CHECKS = Checks()


@CHECKS
async def wait_returns_when_something_enters(rig: Rig) -> None:
    assert await lease_all(rig.warm) == []
    async with waiting(rig) as done, waiting(rig) as other_done:
        assert not done.is_set()
        await rig.warm.enter("q", [whole(rig.run(1, 2))], PLENTY)
        await comes(rig, done)
        await comes(rig, other_done)


@CHECKS
async def what_enters_between_lease_and_wait_is_not_missed(rig: Rig) -> None:
    assert await lease_all(rig.warm) == []
    await rig.warm.enter("q", [whole(rig.run(1, 2))], PLENTY)
    with trio.fail_after(rig.patience_s):
        await rig.warm.wait("q")


@CHECKS
async def wait_returns_when_something_is_put_back(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 2))], PLENTY)
    [leased] = await lease_all(rig.warm)
    assert await lease_all(rig.warm) == []
    async with waiting(rig) as done:
        assert not done.is_set()
        await rig.warm.end("q", [Ending(leased.token, (part(leased.slice.run, 1, 2),))])
        await comes(rig, done)


@CHECKS
async def wait_returns_when_a_lease_has_run_out(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 2))], PLENTY)
    await rig.warm.lease("q", 2, 10**9, 1.0)
    assert await lease_all(rig.warm) == []
    async with waiting(rig) as done:
        await rig.advance(1000)
        assert await rig.warm.expire() == {"q": 2}
        await comes(rig, done)


@CHECKS
async def wait_returns_when_the_next_comes_due(rig: Rig) -> None:
    due_ms = rig.now_ms() + 300
    await rig.warm.enter("q", [whole(rig.run(1, 1), due_ms=due_ms + 60_000)], PLENTY)
    assert await lease_all(rig.warm) == []
    async with waiting(rig) as done:
        # One that comes due before what is being waited for.
        await rig.warm.enter("q", [whole(rig.run(2, 1), due_ms=due_ms)], PLENTY)
        await rig.advance(299)
        await rig.settle()
        assert not done.is_set()
        assert await lease_all(rig.warm) == []
        await rig.advance(1)
        await comes(rig, done)
        assert rig.now_ms() == due_ms
        assert places(await lease_all(rig.warm)) == [(2, 0, 1)]


@CHECKS
async def wait_goes_on_while_there_is_no_more_than_a_lease_left(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 2, flow="paused"))], PLENTY)
    await rig.warm.enter("other", [whole(rig.run(2, 2))], PLENTY)
    assert await rig.warm.lease("q", 9, 10**9, LEASE_S, frozenset(["paused"])) == []
    async with waiting(rig) as done:
        await rig.warm.enter("other", [whole(rig.run(3, 2))], PLENTY)
        await rig.warm.withdraw("other")
        await rig.settle()
        assert not done.is_set()
        await rig.warm.enter("q", [whole(rig.run(4, 2))], PLENTY)
        await comes(rig, done)
