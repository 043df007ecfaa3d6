"""PostgreSQL is away: each daemon delivers what it accepts alone, keyed pushes are refused for now,
and everything goes on by itself when it is back."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay import KeyOutcome, Refused
from tests.fleet.world import Member, World, until

Act = Callable[[World], object]

ITEMS = 100
ROOM = 20


def forbid(world: World) -> None:
    """As a standby does: it can be read."""
    sql = world.postgres.sql
    sql(f"ALTER DATABASE {world.database} SET default_transaction_read_only = on")
    disconnect(world)


def allow(world: World) -> None:
    world.postgres.sql(f"ALTER DATABASE {world.database} RESET default_transaction_read_only")
    disconnect(world)


def disconnect(world: World) -> None:
    """FATAL: terminating connection due to administrator command."""
    which = f"datname = '{world.database}' AND pid <> pg_backend_pid()"
    world.postgres.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {which}")


def nothing(_: World) -> None:
    """`put_right` does it."""


FAULTS: dict[str, tuple[Act, Act]] = {
    "stopped": (lambda world: world.postgres.stop(), nothing),
    "hanging": (lambda world: world.postgres.pause(), nothing),
    "read-only": (forbid, allow),
}
ALL_FAILS = ("stopped", "hanging")
"""Where not even a read succeeds meanwhile."""
UP, AWAY_TOTAL = 'forebay_store_up{store="cold"}', 'forebay_store_away_total{store="cold"}'
QUEUES: dict[str, dict[str, Any]] = {
    **{
        f"small-{name}": {"handler": {"type": "pull"}, "warm_max_items": ROOM}
        for name in (*FAULTS, "cut", "moved")
    },
    **{f"keyed-{name}": {"unique": "ignore"} for name in (*FAULTS, "cut")},
}


def offer(host: Member, queue: str, key: str) -> KeyOutcome:
    with host.client() as client:
        return client.offer(queue, key, f"payload of {key}")


@pytest.mark.parametrize("name", FAULTS)
def test_a_daemon_delivers_alone_and_keys_are_refused_for_now(
    name: str, both: World, a: Member, b: Member
) -> None:
    small, keyed = f"small-{name}", f"keyed-{name}"
    begin, end = FAULTS[name]
    assert offer(b, keyed, "one") is KeyOutcome.CREATED
    both.wait_settled(keyed)
    until(lambda: not a.is_away("cold"))
    begin(both)
    a.push(small, ITEMS)
    until(lambda: a.is_away("cold"))
    # More than fits into memory: the rest comes from the journal, all of it.
    found = a.drain(small, ITEMS)
    assert b.refusal(keyed, "two").retryable
    if name in ALL_FAILS:
        # However many have noticed it, and however often.
        a.stats()
        a.check_changes("cold")
        assert a.is_away("cold")
        until(lambda: not a.metrics()[UP])

    end(both)
    both.put_right()
    both.wait_settled(small)
    assert len(set(found)) == ITEMS
    assert both.books(small)["delivered"] == ITEMS
    # The same key again is another item, since the first is done.
    until(lambda: is_taken(a, keyed, "two"))
    assert set(both.wait_delivered(keyed, 2).values()) == {1}
    until(lambda: not a.is_away("cold"))
    a.check_changes("cold")
    # What is shown may be a second old.
    until(lambda: tells_of_each_outage(a))


def tells_of_each_outage(host: Member) -> bool:
    metrics = host.metrics()
    return metrics[UP] == 1 and metrics[AWAY_TOTAL] == host.changes("cold").count("away")


def is_taken(host: Member, queue: str, key: str) -> bool:
    try:
        return offer(host, queue, key) in (KeyOutcome.CREATED, KeyOutcome.IGNORED)
    except Refused as refused:
        if not refused.retryable:
            raise
        return False


def test_ended_connections_are_nobodys_business(both: World, a: Member, b: Member) -> None:
    a.push("small-cut", ITEMS)
    first = b.drain("small-cut", 30)
    disconnect(both)
    rest = b.drain("small-cut", ITEMS - 30)
    assert len({*first, *rest}) == ITEMS
    disconnect(both)
    assert offer(a, "keyed-cut", "one") is KeyOutcome.CREATED
    assert both.wait_settled("small-cut")["delivered"] == ITEMS
    assert both.wait_settled("keyed-cut")["delivered"] == 1


def test_overflow_of_one_host_is_delivered_by_another(both: World, a: Member, b: Member) -> None:
    a.push("small-moved", ITEMS)
    until(lambda: in_store(b) == ITEMS)
    a.kill()
    assert len(set(b.drain("small-moved", ITEMS))) == ITEMS
    a.start()
    assert both.wait_settled("small-moved")["delivered"] == ITEMS


def in_store(host: Member) -> int:
    held: int = host.stats()["shared"].get("small-moved", {}).get("held", 0)
    return held
