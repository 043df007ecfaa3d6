"""Valkey is away, in all the ways it can be: daemons lease from PostgreSQL, and nothing is lost.

Of `there-…` some items wait in Valkey for a consumer when it goes. They wait until it is back; if
it has forgotten them, their rows are due again.
"""

from collections.abc import Callable

import pytest

from tests.fleet.world import Member, World, until

Act = Callable[[World], object]


def refuse(world: World) -> None:
    for host in world.hosts:
        host.valkey.refuse()


def fill(world: World) -> None:
    """No more memory, and nothing is thrown away."""
    world.valkey.config_set("maxmemory", "1")


def make_room(world: World) -> None:
    world.valkey.config_set("maxmemory", "0")


def replicate(world: World) -> None:
    world.valkey.become_replica()


def nothing(_: World) -> None:
    """`put_right` does it."""


FAULTS: dict[str, tuple[Act, Act]] = {
    "refused": (refuse, nothing),
    "hanging": (lambda world: world.valkey.pause(), nothing),
    "killed": (lambda world: world.valkey.kill(), nothing),
    "full": (fill, make_room),
    "read-only": (replicate, lambda world: world.valkey.become_primary()),
}
PULLED = [f"there-{name}" for name in (*FAULTS, "flushed", "lost", "in-hand", "restarted")]


@pytest.mark.parametrize("name", FAULTS)
def test_daemons_go_on_without_it(name: str, both: World, a: Member, b: Member) -> None:
    through, there = f"through-{name}", f"there-{name}"
    begin, end = FAULTS[name]
    a.push(through, 100)
    both.wait_settled(through)
    a.push(there, 10)
    first = b.drain(there, 2)
    both.until_books(there, delivered=2)
    begin(both)
    if name == "full":
        # It answers, and is not away: rows do not enter.
        a.push(through, 1)
        until(lambda: a.events("warm.refuses"))
        both.wait_delivered(through, 101)
    else:
        until(lambda: a.is_away("warm") and b.is_away("warm"))
    a.push(through, 100)
    b.push(through, 100)
    extra = int(name == "full")
    both.wait_delivered(through, 300 + extra)

    end(both)
    both.put_right()
    until(lambda: not a.is_away("warm") and not b.is_away("warm"))
    a.push(through, 100)
    rest = b.drain(there, 8)
    assert set(both.wait_delivered(through, 400 + extra).values()) == {1}
    assert len({*first, *rest}) == 10
    assert both.wait_settled(through)["delivered"] == 400 + extra
    assert both.wait_settled(there)["delivered"] == 10
    a.check_changes("warm")


def test_rows_that_a_flushed_server_had_are_due_again(both: World, a: Member, b: Member) -> None:
    a.push("there-flushed", 10)
    first = b.drain("there-flushed", 2)
    both.until_books("there-flushed", delivered=2)
    both.valkey.flush()
    rest = b.drain("there-flushed", 8)
    assert len({*first, *rest}) == 10
    assert both.wait_settled("there-flushed")["delivered"] == 10
    until(lambda: a.events("warm.forgot"))


def test_a_queue_of_which_a_part_is_lost_is_made_anew(both: World, a: Member, b: Member) -> None:
    a.push("there-lost", 10)
    first = b.drain("there-lost", 2)
    both.until_books("there-lost", delivered=2)
    for key in both.valkey.command("KEYS", "*{there-lost}*slices*"):
        both.valkey.command("DEL", key)
    rest = b.drain("there-lost", 8)
    assert len({*first, *rest}) == 10
    assert both.wait_settled("there-lost")["delivered"] == 10


def test_one_gauge_and_one_counter_tell_of_it(both: World, a: Member) -> None:
    up, away = 'forebay_store_up{store="warm"}', 'forebay_store_away_total{store="warm"}'
    until(lambda: a.metrics()[up] == 1)
    a.valkey.refuse()
    until(lambda: a.is_away("warm") and a.metrics()[up] == 0)
    until(lambda: a.metrics()[away] == a.changes("warm").count("away"))
    a.valkey.restore()
    until(lambda: a.metrics()[up] == 1 and not a.is_away("warm"))
    a.check_changes("warm")
    until(lambda: a.metrics()[away] == a.changes("warm").count("away"))


def test_a_daemon_that_alone_has_lost_it_goes_on(both: World, a: Member, b: Member) -> None:
    a.push("partly", 100)
    both.wait_settled("partly")
    a.valkey.hang()
    until(lambda: a.is_away("warm"))
    a.push("partly", 100)
    b.push("partly", 100)
    both.wait_delivered("partly", 300)
    a.valkey.restore()
    a.push("partly", 100)
    assert set(both.wait_delivered("partly", 400).values()) == {1}
    assert both.wait_settled("partly")["delivered"] == 400


def test_what_a_consumer_has_counts_though_the_server_forgets(
    both: World, a: Member, b: Member
) -> None:
    a.push("there-in-hand", 10)
    with a.take("there-in-hand", 5) as in_hand:
        forgot = len(a.events("warm.forgot"))
        both.valkey.flush()
        until(lambda: len(a.events("warm.forgot")) > forgot)
        in_hand.ack()
    rest = b.drain("there-in-hand", 5)
    assert len({*in_hand.ids, *rest}) == 10
    assert both.wait_settled("there-in-hand")["delivered"] == 10
    assert b.finds_nothing("there-in-hand")


def test_a_daemon_that_restarts_without_it_delivers_nothing_twice(
    both: World, a: Member, b: Member
) -> None:
    a.push("there-restarted", 10)
    first = b.drain("there-restarted", 2)
    both.until_books("there-restarted", delivered=2)
    a.valkey.refuse()
    a.kill()
    away = len(a.events("warm.away"))
    a.start()
    until(lambda: len(a.events("warm.away")) > away)
    back = len(a.events("warm.back"))
    a.valkey.restore()
    until(lambda: len(a.events("warm.back")) > back)
    rest = b.drain("there-restarted", 8)
    assert len({*first, *rest}) == 10
    assert both.wait_settled("there-restarted")["delivered"] == 10
    assert b.finds_nothing("there-restarted")
