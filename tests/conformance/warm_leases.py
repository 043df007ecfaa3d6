"""What every warm queue must do: leases and their ends, and what is withdrawn."""

from dataclasses import replace

import pytest

from actors.model.slices import ItemError, item_bits
from actors.ports.tiers import Ending, Fill
from tests.conformance.warm_rig import (
    LEASE_S,
    PLENTY,
    Checks,
    Rig,
    lease_all,
    places,
    views,
    whole,
)

CHECKS = Checks()


# Leases.


@CHECKS
async def lease_that_ran_out_is_put_back_at_its_old_place(rig: Rig) -> None:
    run = rig.run(1, 6)
    attempted = replace(whole(run), attempt=3)
    await rig.warm.enter("q", [attempted, whole(rig.run(2, 1))], PLENTY)
    [leased] = await rig.warm.lease("q", 4, 10**9, LEASE_S)
    [kept] = await rig.warm.lease("q", 1, 10**9, 2 * LEASE_S)
    await rig.advance(round(LEASE_S * 1000) - 1)
    assert await rig.warm.expire() == {}
    await rig.advance(1)
    assert await rig.warm.expire() == {"q": 4}
    assert await rig.warm.expire() == {}
    fill = await rig.warm.fill("q")
    assert fill == rig.fill(7, 6 * run.item_bytes + rig.run(2, 1).item_bytes, leased=1)
    again = await lease_all(rig.warm)
    assert places(again) == [(1, 0, 4), (1, 5, 6), (2, 0, 1)]
    assert again[0].slice.attempt == 3
    assert again[0].token not in (leased.token, kept.token)


@CHECKS
async def stale_token_changes_nothing(rig: Rig) -> None:
    run = rig.run(1, 4)
    await rig.warm.enter("q", [whole(run)], PLENTY)
    [stale] = await lease_all(rig.warm)
    await rig.advance(round(LEASE_S * 1000))
    await rig.warm.expire()
    back = replace(stale.slice, attempt=9)
    before = await rig.warm.fill("q")
    assert await rig.warm.end("q", [Ending(stale.token, (back,))]) == [False]
    assert await rig.warm.extend("q", [stale.token], LEASE_S) == [False]
    assert await rig.warm.fill("q") == before == rig.fill(4, whole(run).bytes)
    # Nor while another holds the same items.
    [leased] = await lease_all(rig.warm)
    assert leased.slice.attempt == 0
    assert await rig.warm.end("q", [Ending(stale.token), Ending(leased.token)]) == [False, True]
    assert await rig.warm.end("q", [Ending(leased.token)]) == [False]
    assert await rig.warm.fill("q") == Fill()


@CHECKS
async def token_counts_for_its_own_queue_and_only_once(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 2))], PLENTY)
    await rig.warm.enter("other", [whole(rig.run(2, 2))], PLENTY)
    [leased] = await lease_all(rig.warm)
    await lease_all(rig.warm, "other")
    for queue in ("other", "unknown"):
        assert await rig.warm.end(queue, [Ending(leased.token)]) == [False]
        assert await rig.warm.extend(queue, [leased.token], 1.0) == [False]
    twice = [Ending(leased.token), Ending(leased.token, (leased.slice,))]
    assert await rig.warm.end("q", twice) == [True, False]
    assert await rig.warm.fill("q") == Fill()


@CHECKS
async def extended_lease_lasts_from_now(rig: Rig) -> None:
    await rig.warm.enter("q", [whole(rig.run(1, 2))], PLENTY)
    [leased] = await rig.warm.lease("q", 2, 10**9, 10.0)
    await rig.advance(9000)
    assert await rig.warm.extend("q", [leased.token, 10**12], 10.0) == [True, False]
    await rig.advance(9999)
    assert await rig.warm.expire() == {}
    assert await rig.warm.extend("q", [leased.token], 1.0) == [True]
    await rig.advance(1000)
    assert await rig.warm.expire() == {"q": 2}


# Ends.


@CHECKS
async def part_of_a_lease_is_tried_again_now_and_part_later(rig: Rig) -> None:
    run = rig.run(1, 10)
    await rig.warm.enter("q", [whole(run), whole(rig.run(2, 1))], PLENTY)
    [leased] = await rig.warm.lease("q", 10, 10**9, LEASE_S)
    error = ItemError(1, rig.now_ms(), "no")
    now = replace(leased.slice, bits=item_bits(3, 5), attempt=1, errors=(error,))
    later = replace(now, bits=item_bits(0, 2), due_ms=rig.now_ms() + 500)
    assert await rig.warm.end("q", [Ending(leased.token, (now, later))]) == [True]
    fill = await rig.warm.fill("q")
    assert fill == rig.fill(5, 4 * run.item_bytes + rig.run(2, 1).item_bytes, scheduled=2)
    first, second = await lease_all(rig.warm)
    assert views([first]) == views([now])
    assert places([second]) == [(2, 0, 1)]
    await rig.advance(500)
    [due] = await lease_all(rig.warm)
    assert views([due]) == views([later])


@CHECKS
async def only_what_was_leased_is_put_back_and_only_once(rig: Rig) -> None:
    run = rig.run(1, 10)
    await rig.warm.enter("q", [whole(run), whole(rig.run(2, 10))], PLENTY)
    one, other = await rig.warm.lease("q", 13, 10**9, LEASE_S)
    before = await rig.warm.fill("q")
    kept = other.slice
    for again in (
        (replace(kept, bits=item_bits(2, 4)),),
        (replace(kept, bits=0b1), replace(kept, bits=0b11)),
        (replace(kept, bits=0),),
        (replace(one.slice, bits=0b1),),
    ):
        with pytest.raises(ValueError, match="put back"):
            await rig.warm.end("q", [Ending(one.token), Ending(other.token, again)])
        assert await rig.warm.fill("q") == before
    assert await rig.warm.end("q", [Ending(one.token), Ending(other.token, (kept,))]) == [True] * 2


# Withdrawn.


@CHECKS
async def withdraw_takes_all_that_is_not_leased_in_order(rig: Rig) -> None:
    urgent, run = rig.run(2, 2, priority=0), rig.run(1, 4)
    soon = whole(rig.run(3, 1, priority=1), due_ms=rig.now_ms() + 1000)
    await rig.warm.enter("q", [whole(urgent), whole(run), soon], PLENTY)
    [leased] = await rig.warm.lease("q", 1, 10**9, LEASE_S)
    assert places(await rig.warm.withdraw("q")) == [(2, 1, 2), (3, 0, 1), (1, 0, 4)]
    assert await rig.warm.fill("q") == rig.fill(1, urgent.item_bytes, leased=1)
    assert await lease_all(rig.warm) == []
    assert await rig.warm.withdraw("q") == []
    assert await rig.warm.end("q", [Ending(leased.token)]) == [True]


@CHECKS
async def withdraw_takes_a_flow_or_a_run_or_both(rig: Rig) -> None:
    soon_ms = rig.now_ms() + 1000
    runs = [rig.run(number, 2, flow="ab"[number % 2]) for number in range(4)]
    await rig.warm.enter("q", [whole(run) for run in runs[:2]], PLENTY)
    await rig.warm.enter("q", [whole(run, due_ms=soon_ms) for run in runs[2:]], PLENTY)
    withdraw, run_ids = rig.warm.withdraw, [run.head.run_id for run in runs]
    assert await withdraw("q", flow="c") == await withdraw("q", run_id=bytes(15) + b"z") == []
    assert await withdraw("q", "a", run_id=run_ids[1]) == []
    assert places(await withdraw("q", "b", run_id=run_ids[1])) == [(1, 0, 2)]
    assert places(await withdraw("q", run_id=run_ids[2])) == [(2, 0, 2)]
    assert places(await withdraw("q", flow="a")) == [(0, 0, 2)]
    fill = await rig.warm.fill("q")
    assert (fill.items, fill.scheduled) == (2, 2)
    await rig.advance(1000)
    assert places(await lease_all(rig.warm)) == [(3, 0, 2)]


@CHECKS
async def what_is_not_withdrawn_keeps_its_place(rig: Rig) -> None:
    now_ms = rig.now_ms()
    due = [whole(rig.run(number, 1)) for number in (1, 2, 3)]
    soon = [
        whole(rig.run(4, 1), due_ms=now_ms + 100),
        whole(rig.run(5, 1), due_ms=now_ms + 300),
        whole(rig.run(6, 1), due_ms=now_ms + 200),
    ]
    await rig.warm.enter("q", due + soon, PLENTY)
    run_id = due[0].run.head.run_id
    assert places(await rig.warm.withdraw("q", run_id=run_id)) == [(1, 0, 1)]
    run_id = soon[0].run.head.run_id
    assert places(await rig.warm.withdraw("q", run_id=run_id)) == [(4, 0, 1)]
    assert places(await lease_all(rig.warm)) == [(2, 0, 1), (3, 0, 1)]
    await rig.advance(200)
    assert places(await lease_all(rig.warm)) == [(6, 0, 1)]
    await rig.advance(100)
    assert places(await lease_all(rig.warm)) == [(5, 0, 1)]
