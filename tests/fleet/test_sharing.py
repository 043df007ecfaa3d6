"""Any host's workers and consumers take any host's runs, each item once, and any host is enough."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from forebay import Control, KeyOutcome, LeaseLost
from tests.fleet.world import Member, World, until

PULLED = ("mixed", "returned", "restart", "survivor", "fenced", "stopped", "any", "tried")
RUN = 7
ROUNDS = [*[2_000] * 2, *[pytest.param(8_000, marks=pytest.mark.long)] * 20]
"""The items of each."""
QUEUES = {
    "small": {"handler": {"type": "pull"}, "warm_max_items": 100},
    "keyed": {"handler": {"type": "pull"}, "unique": "replace"},
}


def test_workers_of_every_host_take_what_one_of_them_has_accepted(
    both: World, a: Member, b: Member
) -> None:
    with a.client() as client:
        client.control("queues.add", queue="elsewhere", settings={})
        Control(client.control).pause("elsewhere")
    a.push("elsewhere", 500)
    found = both.wait_delivered("elsewhere", 500)
    assert set(found.values()) == {1}
    assert len(b.delivered("elsewhere")) == 500
    assert both.wait_settled("elsewhere")["delivered"] == 500


def test_daemons_that_share_rates_are_counted(both: World) -> None:
    until(lambda: both.valkey.command("ZCARD", "forebay:daemons") == len(both.hosts))


@pytest.mark.parametrize("items", ROUNDS)
def test_consumers_of_two_hosts_never_get_the_same_item(
    items: int, both: World, a: Member, b: Member
) -> None:
    """Most of it overflows, so that rows go through cold, warm and both daemons."""
    wanted = both.books("small")["delivered"] + items

    def consume(host: Member) -> list[str]:
        found: list[str] = []
        with host.client() as client:
            while both.books("small")["delivered"] < wanted:
                with client.lease("small", 50, wait_s=0.2) as lease:
                    found += [item.id for item in lease]
        return found

    with ThreadPoolExecutor() as pool:
        consumers = [pool.submit(consume, host) for host in (a, b)]
        a.push("small", items // 2, run_items=RUN)
        b.push("small", items // 2, run_items=RUN)
        leased = Counter(item for consumer in consumers for item in consumer.result())
    assert [item for item, times in leased.items() if times > 1] == []
    assert len(leased) == items
    assert both.wait_settled("small")["delivered"] == wanted


def test_outcomes_of_all_kinds_are_recorded(both: World, a: Member, b: Member) -> None:
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
    with a.client() as client:
        letters = list(Control(client.control).dead_letters({"queue": "mixed"}))
    assert {letter["id"] for letter in letters} == {item.id for item in items[7:9]}
    assert {letter["errors"][-1]["text"] for letter in letters} == {"never"}


def test_attempts_on_all_hosts_are_counted_together_and_outlive_a_kill(
    both: World, a: Member, b: Member
) -> None:
    def attempts(host: Member) -> dict[str, Any]:
        with host.client() as client:
            found = client.control("queues.stats", queue="tried")
        return found["exceptions"] | {"items": (found["processing"] or {}).get("items", 0)}

    def is_shown(**wanted: int) -> bool:
        return all(attempts(host) == wanted for host in (a, b))

    a.push("tried", 10)
    with a.take("tried", 6) as taken:
        taken.nack(taken.items[:2], error="no credit", reason="business")
        taken.ack()
    with b.take("tried", 4) as taken:
        taken.nack(taken.items[:1], error="never", permanent=True)
        taken.ack()
    until(lambda: is_shown(application=1, business=2, items=10))
    b.kill()
    b.start()
    assert is_shown(application=1, business=2, items=10)
    a.push("tried", 1)
    with b.take("tried", 1) as taken:
        taken.ack()
    until(lambda: is_shown(application=1, business=2, items=11))


def test_what_a_consumer_gives_back_untried_is_still_there(
    both: World, a: Member, b: Member
) -> None:
    a.push("returned", 10)
    with b.take("returned", 10) as taken:
        taken.ack(4)
    both.until_books("returned", delivered=4)
    assert a.drain("returned", 6) == taken.ids[4:]
    assert both.wait_settled("returned")["delivered"] == 10


def test_a_restarted_daemon_delivers_neither_what_is_done_nor_what_is_in_hand(
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


def test_what_a_killed_host_had_handed_over_is_delivered_without_it(
    both: World, a: Member, b: Member
) -> None:
    a.push("survivor", 300, run_items=100)
    until(lambda: b.stats()["shared"].get("survivor", {}).get("held", 0) == 300)
    a.kill()
    assert len(set(b.drain("survivor", 300))) == 300
    a.start()
    assert both.wait_settled("survivor")["delivered"] == 300
    assert a.finds_nothing("survivor")


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


def test_a_stopped_daemon_keeps_nothing_from_the_others(both: World, a: Member, b: Member) -> None:
    a.push("stopped", 10)
    until(lambda: b.stats()["shared"].get("stopped", {}).get("held", 0) == 10)
    a.pause()
    assert len(set(b.drain("stopped", 10))) == 10
    a.resume()
    assert both.wait_settled("stopped")["delivered"] == 10


def test_a_waiting_item_is_changed_and_deleted_from_any_host(
    both: World, a: Member, b: Member
) -> None:
    a.push("any", 30, run_items=10)
    until(lambda: b.stats()["shared"].get("any", {}).get("held", 0) == 30)
    with b.client() as client:
        ids = [item["id"] for item in client.control("items.find", which={"queue": "any"})["items"]]
        client.control("items.delete", id=ids[3])
        client.control("items.change", id=ids[4], payload="another")
        assert client.control("items.show", id=ids[4], payload=True)["payload"] == "another"
        assert Control(client.control).purge("any")["deleted"] == 29
    both.until_books("any", held=0, deleted=30)


def test_a_newer_item_of_a_key_replaces_the_one_that_waits(
    both: World, a: Member, b: Member
) -> None:
    for at in range(40):
        with a.client() as one, b.client() as other:
            assert one.offer("keyed", f"key-{at}", "old") is KeyOutcome.CREATED
            assert other.offer("keyed", f"key-{at}", "new") is KeyOutcome.UPDATED
    with b.take("keyed", 40) as taken:
        assert {item.payload for item in taken.items} == {b"new"}
        taken.ack()
    both.until_books("keyed", held=0, delivered=40)
