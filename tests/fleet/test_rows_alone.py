"""A fleet on PostgreSQL alone: rows are leased when they are asked for, so each daemon has all."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from forebay import Control, KeyOutcome, connect
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync
from tests.servers.postgres import fresh_database

TIMEOUT_S = 240.0
"""Nothing is measured by it: what never comes should fail the test."""
QUEUES = {
    "pulled": {"handler": {"type": "pull"}},
    "keyed": {"handler": {"type": "pull"}, "unique": "replace"},
    "later": {"handler": {"type": "pull"}},
    "purged": {"handler": {"type": "pull"}},
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    place = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        cold = {"type": "postgres", "url": stack.enter_context(fresh_database())}
        made = []
        for name in ("a", "b"):
            (place / name).mkdir()
            spool = {"chunk_size": "4Mi", "min_free_bytes": 0, "spare_chunks": 0}
            config = {"fleet": True, "cold": cold, "spool": spool, "queues": QUEUES}
            made.append(stack.enter_context(running(Host(place / name, config))))
        yield made[0], made[1]


def take(host: Host, queue: str, items: int) -> list[str]:
    found: list[str] = []
    with connect(host.socket, TIMEOUT_S) as client:

        def more() -> None:
            with client.lease(queue, items - len(found), wait_s=1) as lease:
                found.extend(item.id for item in lease)
            assert len(found) == items, f"{len(found)} of {items} items of {queue}"

        eventually_sync(more)
    return found


def test_what_one_daemon_accepts_another_delivers(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    with connect(a.socket, TIMEOUT_S) as client:
        client.push("pulled", [f"item {at}" for at in range(1000)])
    first = take(b, "pulled", 10)
    # The rest of the run is free for the other daemon, at once.
    rest = take(a, "pulled", 990)
    assert len({*first, *rest}) == 1000


def test_items_due_later_are_all_polled_at_one_daemon(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    due_ms = round(time.time() * 1000) + 1500
    with connect(a.socket, TIMEOUT_S) as client:
        for at in range(12):
            client.push("later", [f"item {at}"], due_ms=due_ms)
    assert len(set(take(b, "later", 12))) == 12


@pytest.mark.parametrize("offers", [50, pytest.param(200, marks=pytest.mark.long)])
def test_an_offered_item_can_be_polled_immediately(offers: int, hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    with connect(a.socket, TIMEOUT_S) as one, connect(b.socket, TIMEOUT_S) as other:
        for at in range(offers):
            offered, polling = (one, other) if at % 2 else (other, one)
            assert offered.offer("keyed", f"key-{offers}-{at}", "payload") is KeyOutcome.CREATED
            with polling.lease("keyed", 1) as lease:
                assert len(lease) == 1, f"after offer {at}"


def test_a_newer_item_of_a_key_replaces_the_one_that_waits(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    with connect(a.socket, TIMEOUT_S) as one, connect(b.socket, TIMEOUT_S) as other:
        for at in range(50):
            assert one.offer("keyed", f"twice-{at}", "old") is KeyOutcome.CREATED
            assert other.offer("keyed", f"twice-{at}", "new") is KeyOutcome.UPDATED
        with one.lease("keyed", 50) as lease:
            assert {item.payload for item in lease} == {b"new"}
            assert len(lease) == 50


def test_any_daemon_purges_all_that_waits(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    with connect(a.socket, TIMEOUT_S) as client:
        for at in range(10):
            client.push("purged", [f"item {at} {n}" for n in range(20)])

    def handed_over() -> bool:
        with connect(b.socket, TIMEOUT_S) as client:
            return bool(client.stats()["shared"].get("purged", {}).get("held", 0) == 200)

    eventually_sync(handed_over)
    with connect(b.socket, TIMEOUT_S) as client:
        assert Control(client.control).purge("purged")["deleted"] == 200
        with client.lease("purged", 1) as lease:
            assert not len(lease)
