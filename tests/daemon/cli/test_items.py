"""A delayed queue with a real daemon: on the command line, and with the client beside it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay import KeyOutcome, LeaseLost, Lock, LockLost, Refused, connect
from forebay.client import Client
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome
HOUR = timedelta(hours=1)
AT_ONCE = {"backoff": {"enabled": False}, "max_retries": 2}
QUEUES: dict[str, dict[str, Any]] = {
    "commands": {"unique": "reject", **AT_ONCE},
    "runout": {"unique": "replace", **AT_ONCE},
    "batches": {"unique": "ignore"},
    "keys": {"unique": "replace"},
    "plain": AT_ONCE,
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory: Path = tmp_path_factory.mktemp("items")
    with running(Host(directory, {"queues": QUEUES})) as host:
        yield host


@pytest.fixture
def client(host: Host) -> Iterator[Client]:
    with connect(host.socket, HANG_S) as client:
        yield client


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_item_is_offered_polled_and_acknowledged_by_commands(host: Host) -> None:
    assert host.ok("items", "offer", "commands", "a", "hello").strip() == "created"
    again = host.command("items", "offer", "commands", "a", "-", "--delay", "1h", stdin=b"x")
    assert (again.returncode, again.stdout) == (5, b"conflict\n")
    (polled,) = lines(host.ok("items", "poll", "commands", "--lease", "1h", "--wait", "60s"))
    assert (polled["key"], polled["payload"], polled["attempt"]) == ("a", "hello", 0)
    assert polled["scheduled_at_ms"] == polled["scheduled_at_initially_ms"]
    # Whoever polled it is gone, and it is nobody else's all the same.
    assert host.ok("items", "poll", "commands") == ""
    shown = host.ok("items", "show", "commands", "a")
    assert "RUNNING" in shown
    assert shown.endswith("payload\nhello\n")
    host.ok("items", "extend", polled["lock"], "2h")
    host.ok("items", "ack", polled["lock"])
    late = host.command("items", "ack", polled["lock"])
    assert late.returncode == 5
    assert b"LEASE_LOST" in late.stderr
    assert host.command("items", "ack", "no-lock").returncode == 2
    assert host.command("items", "extend", "1.commands", "30d").returncode == 2
    host.until_books({"accepted": 1, "delivered": 1}, "commands")


def test_items_are_listed_and_deleted_by_key_and_by_id(host: Host, client: Client) -> None:
    queue = client.delayed("keys")
    assert queue.offer_many([("x", "1"), ("y", "2")], at=HOUR) == [CREATED, CREATED]
    found = lines(host.ok("items", "ls", "--queue", "keys", "--json"))
    assert [item["key"] for item in found] == ["x", "y"]
    assert found[0]["id"] in host.ok("items", "ls", "--queue", "keys", "--key", "x")
    host.ok("items", "rm", "keys", "x")
    host.ok("items", "rm", found[1]["id"])
    assert host.command("items", "rm", "keys", "x").returncode == 4
    assert not queue.contains("x")
    assert not queue.contains("y")


def test_what_is_not_acknowledged_comes_again_and_shows_it(host: Host, client: Client) -> None:
    queue = client.delayed("runout")
    at = datetime.now(UTC) - HOUR
    assert queue.offer("k", "v", at) is CREATED
    first = queue.try_poll(lease_s=0.05, wait_s=HANG_S)
    assert first is not None
    assert (first.attempt, first.is_redelivery) == (0, False)
    assert first.scheduled_at_initially_ms == round(at.timestamp() * 1000)
    # Whoever waits is given it when the lease is over.
    second = queue.try_poll(lease_s=3600, wait_s=HANG_S)
    assert second is not None
    assert (second.item.id, second.attempt, second.is_redelivery) == (first.item.id, 1, True)
    shown = client.control("items.show", id=first.item.id)
    assert (shown["state"], shown["attempt"]) == ("RUNNING", 1)
    assert shown["scheduled_at_ms"] == second.scheduled_at_ms
    assert shown["scheduled_at_initially_ms"] == first.scheduled_at_initially_ms
    assert [error["text"] for error in shown["errors"]] == ["the lease ran out"]
    with pytest.raises(LockLost):
        queue.ack(first.lock)
    queue.nack(second.lock, error="no such customer")
    third = queue.try_poll(wait_s=HANG_S, lease_s=0.05)
    assert third is not None
    assert third.attempt == 2
    # The third attempt was the last one: its lease runs out, and the item is a dead letter.
    assert queue.try_poll(wait_s=0.5) is None

    def dead() -> None:
        held = queue.read("k")
        assert held is not None
        assert (held.state, held.payload, held.attempt) == ("dead", b"v", 3)

    eventually_sync(dead)
    host.until_books({"accepted": 1, "dead": 1}, "runout")


def test_a_batch_is_acknowledged_by_one_lock_from_another_process(
    host: Host, client: Client
) -> None:
    queue = client.delayed("batches")
    past = datetime.now(UTC) - HOUR
    timed = [(f"k{n}", f"v{n}", past + timedelta(minutes=n)) for n in range(10)]
    assert queue.offer_many(timed) == [CREATED] * 10
    assert queue.offer_many([("k3", "again"), ("new", "v", HOUR)]) == [IGNORED, CREATED]
    polled: list[str] = []
    while len(polled) < 10:
        batch = queue.try_poll_many(10, lease_s=3600, wait_s=HANG_S)
        polled += [one.key or "" for one in batch]
        assert Lock.parse(str(batch.lock)) == batch.lock == batch[0].lock
        with connect(host.socket) as other:
            other.delayed("batches").ack(str(batch.lock))
    assert polled == [key for key, _, _ in timed]
    assert not queue.try_poll_many(10)
    host.until_books({"accepted": 11, "delivered": 10, "held": 1}, "batches")


def test_what_a_key_stands_for_is_read_and_dropped(client: Client) -> None:
    queue = client.delayed("keys")
    long = "é" * 100_000
    assert queue.read("r") is None
    assert queue.drop("r") is False
    assert queue.offer("r", "short", HOUR) is CREATED
    assert queue.offer("r", long, HOUR) is UPDATED
    held = queue.read("r")
    assert held is not None
    assert (held.payload.decode(), held.state, held.attempt) == (long, "waiting", 0)
    assert held.scheduled_at_ms == held.scheduled_at_initially_ms
    assert queue.contains("r")
    assert queue.drop("r") is True
    assert not queue.contains("r")
    assert queue.offer("r", b"\xff", None) is CREATED
    polled = queue.try_poll(wait_s=HANG_S)
    assert polled is not None
    assert polled.payload == b"\xff"
    assert queue.read("r") is not None
    with pytest.raises(Refused, match="has started"):
        queue.drop("r")
    queue.ack(polled.lock)


def test_a_queue_whose_keys_are_not_unique_says_so(host: Host, client: Client) -> None:
    queue = client.delayed("plain")
    assert [queue.offer("k", payload) for payload in "ab"] == [CREATED, CREATED]
    for ask in (queue.read, queue.contains, queue.drop):
        with pytest.raises(ValueError, match="not unique"):
            ask("k")
    for command in ("show", "rm"):
        said = host.command("items", command, "plain", "k")
        assert (said.returncode, b"not unique" in said.stderr) == (2, True)
    # It is delayed all the same: of the journal's items the lease runs out as well.
    first = queue.try_poll(lease_s=0.05, wait_s=HANG_S)
    second = queue.try_poll(lease_s=3600, wait_s=HANG_S)
    third = queue.try_poll(lease_s=3600, wait_s=HANG_S)
    assert first is not None
    assert second is not None
    assert third is not None
    assert {second.payload, third.payload} == {b"a", b"b"}
    again = second if second.item.id == first.item.id else third
    assert (again.attempt, again.is_redelivery) == (1, True)
    queue.ack(second.lock)
    queue.ack(third.lock)
    with pytest.raises(LeaseLost):
        queue.extend(third.lock, 60)
    host.until_books({"accepted": 2, "delivered": 2}, "plain")
