"""Keyed queues, with a real daemon: policies, races, kills, writes, and the command line."""

import json
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forebay import KeyOutcome, Refused, connect, encode_run, new_write_id
from forebay.client import Client
from forebay.ids import new_run_id
from forebay.stage_frames import WRITE_HEADER
from forebay.tally import Collected
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome
LATER_S = 3600.0
QUEUES: dict[str, dict[str, Any]] = {
    policy: {"unique": policy} for policy in ("off", "ignore", "reject", "replace")
}


def keyed_host(directory: Path, **queues: dict[str, Any]) -> Host:
    return Host(directory, {"queues": {**QUEUES, **queues}})


def take_all(client: Client, queue: str, items: int) -> list[bytes]:
    """Leases and acknowledges so many."""
    payloads: list[bytes] = []
    while len(payloads) < items:
        with client.lease(queue, items, wait_s=HANG_S) as lease:
            assert lease, f"{len(payloads)} of {items} items"
            payloads += [item.payload for item in lease]
    return payloads


def settled(client: Client, queue: str) -> dict[str, int]:
    """The books, when nothing is held any more; they balance at every look."""

    def idle() -> dict[str, int]:
        books: dict[str, int] = client.stats()["queues"][queue]
        over = ("delivered", "dead", "dropped", "deleted", "lost")
        whole = sum(books[name] for name in over)
        if books["accepted"] != whole + books["held"]:
            pytest.fail(f"the books do not balance: {books}")
        assert not books["held"], books
        return {name: count for name, count in books.items() if count}

    return eventually_sync(idle)


def test_run_id_that_is_used_for_two_runs_is_refused_whichever_queue_is_keyed(
    tmp_path: Path,
) -> None:
    due_ms = round(time.time() * 1000) + 600_000

    def make(queue: str, items: int, run_id: bytes) -> bytes:
        keys = [run_id + b"%d" % index for index in range(items)]
        payloads = [b"%b of %d" % (queue.encode(), items)] * items
        return encode_run(payloads, queue=queue, keys=keys, due_ms=due_ms, run_id=run_id)

    pairs = [("off", "ignore"), ("ignore", "off"), ("ignore", "reject"), ("off", "plain")]
    with running(keyed_host(tmp_path, plain={})) as host:
        for first, second in pairs:
            run_id = new_run_id()
            with connect(host.socket) as client:
                for run in [make(first, 2, run_id)] * 2:
                    client.submit(run)
                    client.drain()
                for other in (make(second, 2, run_id), make(second, 4, run_id)):
                    client.submit(other)
                    with pytest.raises(Refused, match=r"BAD_RUN.*other content"):
                        client.drain()
        host.stop(signal.SIGKILL)
        host.start()
        # The unkeyed runs are in the cold store by now, or still in the journal.
        with connect(host.socket) as client:
            queues = client.stats()["queues"]
            assert {name: books["held"] for name, books in queues.items() if books["held"]} == {
                "off": 4,
                "ignore": 4,
            }
        assert not [line for line in host.log() if "corrupt" in line["event"]]


def test_all_policies_from_offer_to_delivery(tmp_path: Path) -> None:
    second = {"off": CREATED, "ignore": IGNORED, "reject": CONFLICT, "replace": UPDATED}
    with running(keyed_host(tmp_path)) as host, connect(host.socket) as client:
        for queue, outcome in second.items():
            assert client.offer(queue, "a", "first", delay=LATER_S) is CREATED
            items = [("a", "second"), (None, "no key"), ("b", "other")]
            assert client.offer_batch(queue, items) == [outcome, CREATED, CREATED]
        # What is due can be taken; the first ones of two queues wait for their time.
        assert sorted(take_all(client, "replace", 3)) == [b"no key", b"other", b"second"]
        assert settled(client, "replace") == {"accepted": 4, "delivered": 3, "deleted": 1}
        assert sorted(take_all(client, "ignore", 2)) == [b"no key", b"other"]
        held = client.key_show("ignore", "a")
        assert held["state"] == "waiting"
        assert client.key_drop("ignore", "a") == held
        assert settled(client, "ignore") == {"accepted": 3, "delivered": 2, "deleted": 1}
        assert client.offer("ignore", "a", "once more") is CREATED


def test_what_is_offered_unchanged_keeps_its_id(tmp_path: Path) -> None:
    at = round((time.time() + LATER_S) * 1000)
    with running(keyed_host(tmp_path)) as host, connect(host.socket) as client:
        queue = client.delayed("replace")
        assert queue.offer("a", b"x", at) is CREATED
        first = client.key_show("replace", "a")
        for _ in range(3):
            assert queue.offer("a", b"x", at) is IGNORED
        assert queue.offer_many([("a", b"x"), ("b", b"x")], at) == [IGNORED, CREATED]
        assert client.key_show("replace", "a") == first
        assert queue.offer("a", b"y", at) is UPDATED
        assert queue.offer("a", b"y", at + 1) is UPDATED
        second = client.key_show("replace", "a")
        assert second["id"] != first["id"]
        assert second["due_ms"] == at + 1
        # At once, every offer is a new one.
        host.ok("queues", "pause", "replace")
        assert [queue.offer("a", b"y") for _ in range(2)] == [UPDATED, UPDATED]
        host.until_books({"accepted": 6, "held": 2, "deleted": 4}, "replace")


def test_an_update_that_was_made_on_what_is_no_longer_so_is_a_conflict(tmp_path: Path) -> None:
    with running(keyed_host(tmp_path)) as host, connect(host.socket) as client:
        client.offer("reject", "a", "1", delay=LATER_S)
        seen = client.key_show("reject", "a")["id"]
        assert client.offer("reject", "a", "2", delay=LATER_S, only_if=seen) is UPDATED
        assert client.offer("reject", "a", "3", delay=LATER_S, only_if=seen) is CONFLICT
        now = client.key_show("reject", b"a")["id"]
        assert client.offer("reject", "a", "4", only_if=now) is UPDATED
        assert take_all(client, "reject", 1) == [b"4"]


def test_what_is_refused_about_keys(tmp_path: Path) -> None:
    with running(keyed_host(tmp_path)) as host, connect(host.socket) as client:
        with pytest.raises(Refused, match="NOT_FOUND"):
            client.key_show("reject", "a")
        with pytest.raises(Refused, match="BAD_REQUEST"):
            client.key_drop("reject", "k" * 201)
        with pytest.raises(Refused, match="BAD_RUN"):
            client.offer("reject", "a", "1", only_if="no id")
        client.offer("reject", "a", "1")
        with client.lease("reject", 1, wait_s=HANG_S) as lease:
            assert client.key_show("reject", "a")["state"] == "started"
            with pytest.raises(Refused, match="has started"):
                client.key_drop("reject", "a")
            assert client.offer("reject", "a", "2") is CONFLICT
            assert len(list(lease)) == 1


def test_a_window_outlives_delivery_and_the_daemon(tmp_path: Path) -> None:
    host = keyed_host(tmp_path, windowed={"unique": "ignore", "unique_window": "1h"})
    with running(host):
        with connect(host.socket) as client:
            assert client.offer("windowed", "a", "1") is CREATED
            take_all(client, "windowed", 1)
            settled(client, "windowed")
        host.stop()
        host.start()
        with connect(host.socket) as client:
            assert client.offer("windowed", "a", "2") is IGNORED
            assert client.key_show("windowed", "a")["state"] == "done"


@pytest.mark.parametrize("queue", ["ignore", "reject", "replace"])
def test_of_many_producers_one_creates_each_key(tmp_path: Path, queue: str) -> None:
    keys = [f"key {n}" for n in range(300)]
    found: list[list[KeyOutcome]] = []

    def produce(host: Host, size: int) -> None:
        with connect(host.socket) as client:
            items = [(key, f"in runs of {size}") for key in keys]
            found.append(client.offer_batch(queue, items, delay=LATER_S, run_items=size))

    with running(keyed_host(tmp_path)) as host:
        sizes = [1, 7, 50, 300, 10, 3]
        threads = [threading.Thread(target=produce, args=(host, size)) for size in sizes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == len(sizes)
        for outcomes in zip(*found, strict=True):
            assert Counter(outcomes)[CREATED] == 1
        other = {"ignore": IGNORED, "reject": CONFLICT, "replace": UPDATED}[queue]
        everything = Counter(outcome for outcomes in found for outcome in outcomes)
        assert everything == {CREATED: 300, other: 300 * (len(sizes) - 1)}
        updated = everything[UPDATED]
        books = {"accepted": 300 + updated, "held": 300, "deleted": updated}
        host.until_books({name: count for name, count in books.items() if count}, queue)


def test_a_kill_around_keyed_pushes_leaves_each_key_once(tmp_path: Path) -> None:
    """The client sends what was not answered again, and nothing contradicts itself."""
    host = keyed_host(tmp_path)
    keys = [f"key {n}" for n in range(2000)]
    found: list[list[KeyOutcome]] = []
    begun = threading.Event()

    def produce() -> None:
        with connect(host.socket, timeout=HANG_S) as client:
            for start in range(0, len(keys), 20):
                items = [(key, "x") for key in keys[start : start + 20]]
                found.append(client.offer_batch("reject", items, delay=LATER_S, run_items=5))
                if start >= 400:
                    begun.set()

    with running(host):
        producer = threading.Thread(target=produce)
        producer.start()
        assert begun.wait(HANG_S)
        host.stop(signal.SIGKILL)
        host.start()
        producer.join(HANG_S)
        assert not producer.is_alive()
        # Nobody else offers these: each of them is new, however often its push was sent.
        assert [o for outcomes in found for o in outcomes] == [CREATED] * len(keys)
        eventually_sync(lambda: host.books("reject")["held"] == len(keys))
        with connect(host.socket) as client:
            again = client.offer_batch("reject", [(key, "y") for key in keys])
        assert again == [CONFLICT] * len(keys)


def test_the_same_bytes_have_the_same_answer_in_the_next_life(tmp_path: Path) -> None:
    host = keyed_host(tmp_path)
    run = encode_run([b"1", b"2", b"3"], queue="ignore", keys=[b"a", b"b", b"a"])
    answers = []
    with running(host):
        for _ in range(2):
            with connect(host.socket) as client:
                collected = Collected()
                client.submit(run, tally=collected)
                client.drain()
                answers.append(list(collected.in_order()))
                if len(answers) == 1:
                    take_all(client, "ignore", 2)
                    settled(client, "ignore")
            host.stop(signal.SIGKILL)
            host.start()
        assert answers == [[CREATED, CREATED, IGNORED]] * 2
        host.until_books({"accepted": 2, "delivered": 2, "duplicate": 3}, "ignore")


def test_a_write_is_decided_on_when_it_is_published(tmp_path: Path) -> None:
    with running(keyed_host(tmp_path)) as host, connect(host.socket) as client:
        client.offer("ignore", "a", "pushed", delay=LATER_S)
        write = new_write_id()
        stage = client.stage(write)
        headers = {WRITE_HEADER: write.hex()}
        stage.submit(encode_run([b"1", b"2"], queue="ignore", keys=[b"a", b"b"], headers=headers))
        stage.submit(encode_run([b"3", b"4"], queue="ignore", keys=[b"b", b""], headers=headers))
        sealed = stage.seal()
        with pytest.raises(Refused, match="NOT_FOUND"):
            client.key_show("ignore", "b")
        client.publish(write, [sealed.stage])
        assert sorted(take_all(client, "ignore", 2)) == [b"2", b"4"]
        receipt = client.wait_receipt(write, timeout=HANG_S)
        assert (receipt.accepted, receipt.delivered, receipt.deleted) == (4, 2, 2)
        assert (receipt.ignored, receipt.updated, receipt.conflict) == (2, 0, 0)
        assert receipt.as_dict()["ignored"] == 2
        host.until_books({"accepted": 5, "delivered": 2, "deleted": 2, "held": 1}, "ignore")


def test_the_command_says_what_became_of_items(tmp_path: Path) -> None:
    with running(keyed_host(tmp_path)) as host:
        out = host.ok("push", "ignore", "--key", "k", stdin=b"1\n2\n3\n")
        assert out.strip().endswith("1 created, 2 ignored")
        rows = b"".join(json.dumps({"id": n}).encode() + b"\n" for n in (1, 2, 2))
        out = host.ok("push", "reject", "--key-field", "id", stdin=rows)
        assert out.strip().endswith("2 created, 1 conflict")
        assert "created" not in host.ok("push", "off", "--key", "k", stdin=b"1\n2\n")
