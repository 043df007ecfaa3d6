"""What a warm queue must do whose leases run on this host's clocks: leases outlive a step of the
wall clock, and do not outlast it; what is due goes by the wall clock."""

from actors.ports.tiers import Ending
from tests.conformance.warm_rig import (
    LEASE_S,
    PLENTY,
    Checks,
    Rig,
    comes,
    lease_all,
    places,
    waiting,
    whole,
)

CHECKS = Checks()

HOUR_MS = 3_600_000
LEASE_MS = round(LEASE_S * 1000)


@CHECKS
async def lease_does_not_run_out_when_the_wall_clock_is_set_forward(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 4))], PLENTY)
    [leased] = await lease_all(rig.warm)
    rig.step(HOUR_MS)
    assert await rig.warm.expire() == {}
    assert await lease_all(rig.warm) == []
    await rig.advance(LEASE_MS - 1)
    assert await rig.warm.expire() == {}
    assert await rig.warm.end("q", [Ending(leased.token)]) == [True]


@CHECKS
async def lease_lasts_no_longer_when_the_wall_clock_is_set_back(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 4))], PLENTY)
    [leased] = await lease_all(rig.warm)
    rig.step(-HOUR_MS)
    assert await rig.warm.expire() == {}
    await rig.advance(LEASE_MS)
    assert await rig.warm.expire() == {"q": 4}
    assert await rig.warm.end("q", [Ending(leased.token)]) == [False]
    assert places(await lease_all(rig.warm)) == [(1, 0, 4)]


@CHECKS
async def extended_lease_is_as_steady(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 1)), whole(rig.run(2, 2))], PLENTY)
    one, other = await lease_all(rig.warm)
    rig.step(HOUR_MS)
    assert await rig.warm.extend("q", [one.token], 2 * LEASE_S) == [True]
    rig.step(-2 * HOUR_MS)
    assert await rig.warm.extend("q", [other.token], LEASE_S) == [True]
    await rig.advance(LEASE_MS - 1)
    assert await rig.warm.expire() == {}
    await rig.advance(1)
    assert await rig.warm.expire() == {"q": 2}
    await rig.advance(LEASE_MS)
    assert await rig.warm.expire() == {"q": 1}


@CHECKS
async def end_of_a_lease_is_told_in_wall_time(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 2))], PLENTY)
    for ms in (HOUR_MS, -2 * HOUR_MS):
        rig.step(ms)
        [leased] = await rig.warm.lease("q", 1, 10**9, LEASE_S)
        assert leased.until_ms == rig.now_ms() + LEASE_MS


@CHECKS
async def what_is_scheduled_follows_the_wall_clock(rig: Rig) -> None:
    due_ms = rig.now_ms() + HOUR_MS
    await rig.warm.enter("q", [whole(rig.run(1, 1), due_ms=due_ms)], PLENTY)
    rig.step(-HOUR_MS)
    await rig.advance(HOUR_MS)
    assert await lease_all(rig.warm) == []
    async with waiting(rig) as done:
        assert not done.is_set()
        rig.step(HOUR_MS)
        await comes(rig, done)
    assert places(await lease_all(rig.warm)) == [(1, 0, 1)]


@CHECKS
async def what_was_due_when_its_lease_ran_out_waits_for_its_time_again(rig: Rig) -> None:
    """It is no earlier than it says, by the wall clock as it is now."""
    due_ms = rig.now_ms()
    await rig.warm.enter("q", [whole(rig.run(1, 1), due_ms=due_ms)], PLENTY)
    await lease_all(rig.warm)
    rig.step(-HOUR_MS)
    await rig.advance(LEASE_MS)
    assert await rig.warm.expire() == {"q": 1}
    assert (await rig.warm.fill("q")).scheduled == 1
    rig.step(HOUR_MS)
    assert places(await lease_all(rig.warm)) == [(1, 0, 1)]
