"""Any host's workers take any host's runs, and what became of them goes back to their owner."""

import pytest

from forebay import Control, LeaseLost
from tests.fleet.world import Member, World, until

PULLED = ("mixed", "returned", "restart", "posted", "silent", "fenced", "stopped")


def test_workers_of_every_host_take_what_one_of_them_has_accepted(
    both: World, a: Member, b: Member
) -> None:
    with a.client() as client:
        client.control("queues.create", queue="elsewhere", settings={})
        Control(client.control).pause("elsewhere")
    a.push("elsewhere", 500)
    found = both.wait_delivered("elsewhere", 500)
    assert set(found.values()) == {1}
    assert len(b.delivered("elsewhere")) == 500
    assert both.wait_settled("elsewhere")["delivered"] == 500
    assert a.queue("elsewhere")["delivered"] == 500
    assert b.queue("elsewhere").get("delivered", 0) == 0


def test_daemons_that_share_rates_are_counted(both: World) -> None:
    until(lambda: both.valkey.command("ZCARD", "forebay:daemons") == len(both.hosts))


def test_outcomes_of_all_kinds_go_back_to_the_owner(both: World, a: Member, b: Member) -> None:
    a.push("mixed", 10)
    with b.take("mixed", 10) as taken:
        items = taken.items
        taken.nack(items[4:7], delay_s=0, error="not now")
        taken.nack(items[7:9], error="never", permanent=True)
        taken.nack(items[9:], delay_s=300, error="later")
        taken.ack()
    with b.take("mixed", 3) as again:
        assert again.ids == [item.id for item in items[4:7]]
        assert {item.attempt for item in again.items} == {1}
        again.ack()
    both.until_books("mixed", held=1)
    assert both.books("mixed") == {
        "accepted": 10,
        "delivered": 7,
        "dead": 2,
        "dropped": 0,
        "deleted": 0,
        "lost": 0,
        "held": 1,
    }
    with b.client() as client:
        letters = list(Control(client.control).dead_letters({"queue": "mixed"}))
    assert {letter["id"] for letter in letters} == {item.id for item in items[7:9]}
    assert {letter["errors"][-1]["text"] for letter in letters} == {"never"}


def test_what_another_host_gives_back_untried_is_still_there(
    both: World, a: Member, b: Member
) -> None:
    a.push("returned", 10)
    with b.take("returned", 10) as taken:
        taken.ack(4)
    # Its owner has heard of the four, and looks for the others where they are.
    both.until_books("returned", delivered=4)
    assert a.drain("returned", 6) == taken.ids[4:]
    assert both.wait_settled("returned")["delivered"] == 10


def test_a_restarted_owner_enters_neither_what_is_done_nor_what_is_in_hand(
    both: World, a: Member, b: Member
) -> None:
    a.push("restart", 20, run_items=10)
    with b.take("restart", 5) as in_hand:
        done = b.drain("restart", 3)
        a.kill()
        a.start()
        rest = b.drain("restart", 12)
        assert b.finds_nothing("restart")
        in_hand.ack()
    assert sorted([*in_hand.ids, *done, *rest]) == sorted({*in_hand.ids, *done, *rest})
    assert both.wait_settled("restart")["delivered"] == 20


def test_an_owner_that_was_away_hears_what_became_of_its_runs(
    both: World, a: Member, b: Member
) -> None:
    a.push("posted", 10)
    with b.take("posted", 10) as in_hand:
        a.kill()
        in_hand.nack(in_hand.items[:1], delay_s=0)
        in_hand.ack()
    a.start()
    with b.take("posted", 1) as again:
        assert again.ids == in_hand.ids[:1]
        assert again.items[0].attempt == 1
        again.ack()
    assert both.wait_settled("posted")["delivered"] == 10
    assert b.finds_nothing("posted")


def test_runs_of_an_owner_that_is_gone_wait_for_it(both: World, a: Member, b: Member) -> None:
    a.push("silent", 10)
    first = b.drain("silent", 1)
    a.kill()
    until(lambda: b.finds_nothing("silent"))
    a.start()
    assert len({*first, *b.drain("silent", 9)}) == 10
    assert both.wait_settled("silent")["delivered"] == 10


def test_a_stopped_daemon_comes_too_late_and_its_word_counts_nothing(
    both: World, a: Member, b: Member
) -> None:
    a.push("fenced", 5)
    with b.take("fenced", 5, lease_s=1) as in_hand:
        b.pause()
        taken = a.drain("fenced", 5)
        b.resume()
        with pytest.raises(LeaseLost):
            in_hand.ack()
    assert sorted(taken) == sorted(in_hand.ids)
    assert both.wait_settled("fenced")["delivered"] == 5


def test_an_owner_that_was_stopped_goes_on(both: World, a: Member, b: Member) -> None:
    a.push("stopped", 10)
    first = b.drain("stopped", 2)
    a.pause()
    until(lambda: b.finds_nothing("stopped"))
    a.resume()
    assert len({*first, *b.drain("stopped", 8)}) == 10
    assert both.wait_settled("stopped")["delivered"] == 10
