"""SIGKILL while items are handed over, promoted, retried and buried: after each, the books balance.

A state directory lives through many daemons; each is killed at another point of the cold store or
of the journal. After every death both stores are looked into: what was acknowledged is delivered,
dead or held by exactly one of them, attempts go on where they were, and only what was sent and not
recorded comes again. At the end everything drains, and exactly those are dead that had to die.
"""

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.crash.delivery_world import FLAKY, WIDE, DeliveryWorld, Tally
from tests.crash.killing_cold import (
    CLOSING_POINTS,
    COLD_POINTS,
    DEAD_POINTS,
    DOUBT,
    FAILURE_POINTS,
    HAND_OVER_POINTS,
    LETTER_POINTS,
    PROMOTION_POINTS,
    RECOVERY_POINTS,
)
from tests.crash.lives import Zygote
from tests.crash.seeds import EFFORT

WORLDS: Final = EFFORT
KILLS_MIN: Final = 40 * EFFORT
JOURNAL_POINTS: Final = (
    "before_mark_append",
    "after_mark_append",
    "before_mark_sync",
    "after_mark_sync",
    "after_block_sync",
    "before_recycle_rename",
)
"""Of those in killing_files.py the ones between which something changes its owner."""
RANDOM_MOMENTS: Final = 6
TRIES_MAX: Final = 10
LEAVES_UNCONFIRMED: Final = ("after_store", "mid_confirm", "before_confirm", "after_dead_store")


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.mark.parametrize("number", range(WORLDS))
def test_books_balance_after_every_kill(
    number: int, zygote: Zygote, tally: Tally, tmp_path: Path
) -> None:
    with closing(DeliveryWorld(f"delivery {number}", zygote, tmp_path, tally)) as world:
        for plan in plan_deaths(world.rng):
            die_at(world, plan)
        world.drain()
        world.sum_up()


@pytest.mark.sums_up
def test_kills_were_many_and_at_every_point(zygote: Zygote, tally: Tally, tmp_path: Path) -> None:
    if tally.worlds < WORLDS:
        pytest.skip("only together with all of the worlds")
    points = [point for point in COLD_POINTS if point not in LETTER_POINTS]
    with closing(DeliveryWorld("delivery", zygote, tmp_path, tally)) as world:
        for _ in range(TRIES_MAX):
            # Chance decides whether a daemon comes to its point before the load ends.
            for point in [point for point in points if not tally.kills[point]]:
                die_at(world, f"{point}:1")
        world.drain()
    print(f"{tally.kills.total()} kills: {dict(tally.kills)}")
    print(
        f"{tally.delivered} items delivered, {tally.delivered_again} of them again, "
        f"{tally.dead} died, {tally.from_cold} were found in cold"
    )
    assert not [point for point in points if not tally.kills[point]]
    assert tally.kills.total() >= KILLS_MIN
    assert tally.dead
    assert tally.from_cold


def test_dead_letters_are_changed_as_a_whole_or_not_at_all(
    zygote: Zygote, tally: Tally, tmp_path: Path
) -> None:
    with closing(DeliveryWorld("letters", zygote, tmp_path, tally)) as world:
        while len(world.audit.found.dead) < 20:
            world.live_and_die("", drains=True)
            world.drain()
        for point in LETTER_POINTS:
            before = world.audit.found.dead
            chosen = sorted(before)[:3]
            operation = "dead.remove" if point.endswith("remove") else "dead.retry"
            if operation == "dead.remove":
                world.audit.may_be_deleted.update(chosen)
            ask = {"op": operation, "which": {"queue": FLAKY, "ids": chosen}}
            assert world.live_and_die(f"{point}:1", drains=True, ask=ask) == point
            left = before.keys() - (chosen if point.startswith("after") else [])
            assert left <= world.audit.found.dead.keys()
            if point.startswith("after"):
                assert not world.audit.found.dead.keys() & set(chosen)
        world.drain()


def test_failed_attempts_are_remembered(zygote: Zygote, tally: Tally, tmp_path: Path) -> None:
    """Items that wait for another attempt, in the journal and in cold, do so after a kill."""
    with closing(DeliveryWorld("attempts", zygote, tmp_path, tally, share_far=0)) as world:
        tried = world.fail_and_die()
        found = world.audit.found.live
        assert {item: found[item].attempt for item in tried} == dict.fromkeys(tried, 1)
        assert tried & world.audit.found.in_cold
        assert tried - world.audit.found.in_cold
        world.drain()


def test_row_that_may_have_been_stored_is_not_delivered_again(
    zygote: Zygote, tally: Tally, tmp_path: Path
) -> None:
    """The cold store does not know whether it has stored what overflowed. The journal keeps it and
    delivers it, and the daemon is killed before the cold store could be told to forget it."""
    with closing(DeliveryWorld("doubt", zygote, tmp_path, tally, share_far=0)) as world:
        world.deliver_and_die(f"{DOUBT}:1")
        assert "cold.away" in world.last_events()
        assert world.audit.found.settled_before
        world.drain()


def test_rows_that_a_dead_daemon_had_in_hand_are_delivered_at_once(
    zygote: Zygote, tally: Tally, tmp_path: Path
) -> None:
    """Not when the dead one's leases run out: there is one daemon for a state directory."""
    with closing(DeliveryWorld("in hand", zygote, tmp_path, tally, share_far=0)) as world:
        world.live_and_die("", drains=False)
        while not world.has_in_cold(WIDE):
            world.live_and_die("", drains=False)
        killed_at = world.live_and_die("after_acquire:1", drains=True, is_sure=True)
        assert killed_at == "after_acquire"
        world.deliver_and_die("")


def die_at(world: DeliveryWorld, plan: str) -> None:
    """A life that ends there, after others that bring about what it needs."""
    point = plan.partition(":")[0]
    if point in (*PROMOTION_POINTS, *FAILURE_POINTS) and not world.has_in_cold(WIDE):
        world.live_and_die("", drains=False)
    if point in RECOVERY_POINTS:
        for _ in range(TRIES_MAX):
            if world.audit.found.unconfirmed:
                break
            world.live_and_die(f"{world.rng.choice(LEAVES_UNCONFIRMED)}:1", drains=False)
    drains = point not in HAND_OVER_POINTS and (
        point not in ("", *JOURNAL_POINTS) or world.rng.random() < 0.5
    )
    world.live_and_die(plan, drains=drains, stops=point in CLOSING_POINTS)


def plan_deaths(rng: Random) -> list[str]:
    often = (*HAND_OVER_POINTS, *DEAD_POINTS, *PROMOTION_POINTS, *FAILURE_POINTS)
    deaths = [f"{point}:{rng.choice((1, 2, 4))}" for point in often]
    deaths += [f"{point}:{rng.choice((1, 2, 5))}" for point in JOURNAL_POINTS]
    once = (*RECOVERY_POINTS, *CLOSING_POINTS, "at_recovery_end")
    deaths += [f"{point}:1" for point in once]
    deaths += [""] * RANDOM_MOMENTS
    rng.shuffle(deaths)
    return deaths
