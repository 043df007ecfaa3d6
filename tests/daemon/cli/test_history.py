"""`forebay history` and the looks of clients, on the real daemon."""

import json
import os
from pathlib import Path

import pytest

from forebay import Control, Refused, connect
from forebay.client import Client
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

SOON = {"backoff": {"initial": "1ms", "jitter": 0}}
QUEUES = {"all": {"history": "all", **SOON}, "crm": SOON, "none": {"history": "none", **SOON}}
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def fail_once(client: Client, queue: str, items: int) -> None:
    """Pushes items of which the first fails once before it is taken."""
    client.push(queue, [f"item {n}" for n in range(items)], keys=[f"k{n}" for n in range(items)])
    with client.lease(queue, items, wait_s=HANG_S) as leased:
        leased.nack([leased[0]], error="not now")
    with client.lease(queue, items, wait_s=HANG_S):
        pass


def shown(host: Host, *args: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in host.ok("history", *args, "--json").splitlines()]


def until_shown(host: Host, rows: int, *args: str) -> list[dict[str, object]]:
    """So many rows: they are written a moment after they were settled."""

    def found() -> list[dict[str, object]]:
        entries = shown(host, *args)
        assert len(entries) == rows, entries
        return entries

    return eventually_sync(found)


def test_what_was_finished_is_shown_as_its_queue_keeps_it(tmp_path: Path) -> None:
    host = Host(tmp_path, {"queues": QUEUES})
    with running(host), connect(host.socket) as client:
        for queue in QUEUES:
            fail_once(client, queue, 5)
        everything = until_shown(host, 5, "all")
        (failed,) = until_shown(host, 1, "crm")
        host.until_books({"accepted": 5, "delivered": 5}, "none")
        assert shown(host, "none") == []
        assert (failed["payload"], failed["key"]) == ("item 0", "k0")
        assert (failed["outcome"], failed["attempt"]) == ("delivered", 2)
        assert [error["text"] for error in failed["errors"]] == ["not now"]  # type: ignore[attr-defined]
        assert {entry["payload"] for entry in everything} == {f"item {n}" for n in range(5)}
        assert everything[0]["payload"] == "item 0"  # The latest is the first.
        assert len(shown(host, "all", "-n", "2")) == 2
        assert str(failed["locked_by"]).endswith("/crm/consumer")
        host.ok("push", "all", "-", "--correlation-id", "c-1", "--traceparent", TRACE, stdin=b"one")
        with client.lease("all", wait_s=HANG_S) as (item,):
            assert dict(item.headers) == {"correlation_id": "c-1", "traceparent": TRACE}
        found = until_shown(host, 1, "all", "--correlation-id", "c-1")
        assert [entry["payload"] for entry in found] == ["one"]
        assert shown(host, "all", "--traceparent", TRACE_ID) == found
        assert shown(host, "all", "--correlation-id", "c-1", "--reason", "business") == []
        host.until_books({"accepted": 5, "delivered": 5}, "crm")
        stats = json.loads(host.ok("stats", "--queue", "crm", "--json"))
        assert stats["exceptions"] == {"application": 1, "business": 0}
        assert stats["states"]["DONE"] == 5
        assert "1 application, 0 business" in host.ok("stats", "--queue", "crm")
        table = host.ok("history", "crm")
        assert str(failed["id"]) in table
        assert "delivered" in table
        assert "not now" in table
        assert host.command("history", "none").stderr == b"the history of none is empty\n"
        assert client.stats()["history_dropped_total"] == 0


def test_attempts_are_counted_across_restarts_whatever_a_queue_keeps(tmp_path: Path) -> None:
    host = Host(tmp_path, {"queues": QUEUES})

    def until_counted(**wanted: int) -> None:
        def counted() -> None:
            stats = json.loads(host.ok("stats", "--queue", "none", "--json"))
            took = stats["processing"] or {"items": 0}
            assert {**stats["exceptions"], "items": took["items"]} == wanted

        eventually_sync(counted)

    for life in range(1, 3):
        with running(host), connect(host.socket) as client:
            until_counted(application=life - 1, business=0, items=6 * (life - 1))
            fail_once(client, "none", 5)
            until_counted(application=life, business=0, items=6 * life)
            assert host.stop() == 0


def test_every_item_of_a_large_run_has_the_result_of_its_function(tmp_path: Path) -> None:
    handler = {"type": "python", "function": "tests.daemon.handlers.functions:receipt"}
    host = Host(tmp_path, {"queues": {"jobs": {"handler": handler, "history": "all"}}})
    with running(host), connect(host.socket) as client:
        # Counted for each of its rows, the run would be more than may wait to be written.
        client.push("jobs", [os.urandom(2048).hex() for _ in range(200)])
        entries = until_shown(host, 200, "jobs", "-n", "1000")
        for entry in entries:
            assert json.loads(str(entry["result"])) == {"receipt": entry["id"]}
        assert client.stats()["history_dropped_total"] == 0


def test_history_is_there_after_a_restart_and_a_removed_letter_in_it(tmp_path: Path) -> None:
    host = Host(tmp_path, {"queues": QUEUES})
    with running(host):
        with connect(host.socket) as client:
            client.push("crm", ["bad", "good"])
            with client.lease("crm", 2, wait_s=HANG_S) as leased:
                leased.nack([leased[0]], error="never", reason="business")
            client.push("all", ["a", "b", "c"])
            with client.lease("all", 3, wait_s=HANG_S):
                pass
            control = Control(client.control)
            eventually_sync(lambda: control.dead_count({"queue": "crm"}) == 1)
            assert host.ok("dead", "ls", "--reason", "application", "--json") == ""
            letter = json.loads(host.ok("dead", "ls", "--reason", "business", "--json"))
            assert "never (business)" in host.ok("dead", "show", letter["id"])
            assert control.dead_remove({"queue": "crm"}) == 1
            books = {"accepted": 5, "delivered": 4, "deleted": 1}
            host.until_books(books)
        host.stop()
        host.start()
        with connect(host.socket) as client:
            (row,) = client.peek("crm", "history").rows
            assert row.finished is not None
            assert (row.finished.outcome, row.attempt) == ("deleted", 1)
            (error,) = row.finished.errors
            assert (error.text, error.failure_reason) == ("never", "business")
            assert len(shown(host, "all")) == 3
            host.until_books(books)
            with pytest.raises(Refused, match="cursor"):
                client.peek("crm", "history", cursor="x")
