"""Valkey is away, in all the ways it can be: each daemon works on alone, and hands back later.

Nothing is in hand when it goes, so that nothing may come twice: what is in `through-…` was
delivered before, and of `there-…` ten items wait in Valkey for a consumer.
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
QUEUES = {"rows": {"handler": {"type": "pull"}, "unique": "ignore"}}


@pytest.mark.parametrize("name", FAULTS)
def test_each_daemon_works_alone_and_hands_back(
    name: str, both: World, a: Member, b: Member
) -> None:
    through, there = f"through-{name}", f"there-{name}"
    begin, end = FAULTS[name]
    a.push(through, 100)
    both.wait_settled(through)
    a.push(there, 10)
    first = b.drain(there, 2)
    both.until_books(there, delivered=2)
    begin(both)
    until(lambda: a.is_away("warm"))
    a.push(through, 100)
    both.wait_delivered(through, 200)
    # Nobody else can take what is there, once it has lapsed.
    alone = a.drain(there, 3)
    until(lambda: b.is_away("warm"))
    b.push(through, 100)
    both.wait_delivered(through, 300)

    end(both)
    both.put_right()
    until(lambda: not a.is_away("warm"))
    until(lambda: not b.is_away("warm"))
    a.push(through, 100)
    rest = b.drain(there, 5)
    assert set(both.wait_delivered(through, 400).values()) == {1}
    assert len({*first, *alone, *rest}) == 10
    assert both.wait_settled(through)["delivered"] == 400
    assert both.wait_settled(there)["delivered"] == 10
    a.check_changes("warm")


def test_a_flushed_server_is_filled_again(both: World, a: Member, b: Member) -> None:
    a.push("there-flushed", 10)
    first = b.drain("there-flushed", 2)
    both.until_books("there-flushed", delivered=2)
    both.valkey.flush()
    rest = b.drain("there-flushed", 8)
    assert len({*first, *rest}) == 10
    assert both.wait_settled("there-flushed")["delivered"] == 10
    until(lambda: a.events("owner.warm_forgot"))


def test_what_a_server_has_lost_of_a_queue_is_entered_again(
    both: World, a: Member, b: Member
) -> None:
    a.push("there-lost", 10)
    first = b.drain("there-lost", 2)
    both.until_books("there-lost", delivered=2)
    for key in both.valkey.command("KEYS", "*{there-lost}*slices*"):
        both.valkey.command("DEL", key)
    rest = b.drain("there-lost", 8)
    assert len({*first, *rest}) == 10
    assert both.wait_settled("there-lost")["delivered"] == 10
    until(lambda: a.events("owner.entered_again"))


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


def test_a_daemon_that_alone_has_lost_it_takes_its_own_back(
    both: World, a: Member, b: Member
) -> None:
    """The others still have Valkey, and what the lost one has there."""
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


def test_what_its_owner_has_in_hand_counts_though_the_server_forgets(
    both: World, a: Member, b: Member
) -> None:
    a.push("there-in-hand", 10)
    with a.take("there-in-hand", 5) as in_hand:
        forgot = len(a.events("owner.warm_forgot"))
        both.valkey.flush()
        until(lambda: len(a.events("owner.warm_forgot")) > forgot)
        rest = b.drain("there-in-hand", 5)
        in_hand.ack()
    assert len({*in_hand.ids, *rest}) == 10
    assert both.wait_settled("there-in-hand")["delivered"] == 10
    assert b.finds_nothing("there-in-hand")


def test_rows_that_a_server_has_lost_come_again(both: World, a: Member, b: Member) -> None:
    """Their owner is PostgreSQL, which hears from nobody that they are lost."""
    with a.client() as client:
        client.offer_batch("rows", [(f"key-{at}", "payload") for at in range(10)])
    first = b.drain("rows", 2)
    for key in both.valkey.command("KEYS", "*{rows}*slices*"):
        both.valkey.command("DEL", key)
    rest = b.drain("rows", 8)
    assert len({*first, *rest}) == 10
    assert both.wait_settled("rows")["delivered"] == 10


def test_an_owner_that_restarts_without_it_enters_nothing_twice(
    both: World, a: Member, b: Member
) -> None:
    a.push("there-restarted", 10)
    first = b.drain("there-restarted", 2)
    both.until_books("there-restarted", delivered=2)
    a.valkey.refuse()
    a.kill()
    a.start()
    until(lambda: a.events("owner.waits_for_validity"))
    # What its last life left there is still there, and nobody takes it.
    alone = a.drain("there-restarted", 3)
    assert b.finds_nothing("there-restarted")
    back = len(a.events("warm.back"))
    a.valkey.restore()
    until(lambda: len(a.events("warm.back")) > back)
    rest = b.drain("there-restarted", 5)
    assert len({*first, *alone, *rest}) == 10
    assert both.wait_settled("there-restarted")["delivered"] == 10
    assert b.finds_nothing("there-restarted")
