"""The real daemon read as a stream: claims outlive it, and each item is read once."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import Refused, connect, read_run
from forebay.client import Client
from forebay.streams import Claim, FetchedRow
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

ITEMS = 20_000
STEP = 8_000


def push_numbers(client: Client, items: int = ITEMS) -> None:
    client.push("crm", [b"%d" % number for number in range(items)])


def push_to_stream(host: Host, client: Client, items: int = ITEMS) -> None:
    """To a queue that is read as a stream: all of it has come to cold, so that what a claim has
    does not depend on how much was on its way."""
    assert client.claim("crm", "reader", after=0, items=0).number is None
    push_numbers(client, items)
    host.until_counts("crm", cold=items)


def rows_of(client: Client, claim: Claim, queue: str = "crm") -> list[FetchedRow]:
    """All rows of a claim, a few at a time."""
    assert claim.number is not None
    rows: list[FetchedRow] = []
    at: int | None = 0
    while at is not None:
        fetched = client.fetch(queue, "reader", claim.number, first=at, rows=3)
        rows += fetched.rows
        at = fetched.next
    assert [row.number for row in rows] == list(range(claim.rows))
    return rows


def payloads(rows: list[FetchedRow]) -> Iterator[bytes]:
    for row in rows:
        run = read_run(row.run)
        for index, payload in enumerate(run.payloads(0, run.head.count)):
            if row.bits is None or row.bits >> index & 1:
                yield payload


def test_what_was_claimed_is_read_again_after_kill_9_and_what_was_acknowledged_never(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    seen: list[bytes] = []
    done = 0
    with running(host):
        with connect(host.socket) as client:
            push_to_stream(host, client)
        while len(seen) < ITEMS:
            with connect(host.socket) as client:
                claim = client.claim("crm", "reader", after=done, items=STEP)
                assert 0 < claim.items <= STEP
                before = rows_of(client, claim)
            host.stop(signal.SIGKILL)
            host.start()
            with connect(host.socket) as client:
                again = client.claim("crm", "reader", after=done, items=1)
                assert (again.number, again.rows, again.items) == (
                    claim.number,
                    claim.rows,
                    claim.items,
                )
                assert rows_of(client, again) == before
                seen += payloads(before)
                assert claim.number is not None
                done = claim.number
                # Acknowledged, and the answer lost with the daemon.
                client.claim("crm", "reader", after=done, items=STEP)
            host.stop(signal.SIGKILL)
            host.start()
            with connect(host.socket) as client:
                status = client.stream_status("crm", "reader")
                assert status.acknowledged == done
                host.until_counts("crm", delivered=len(seen))
                with pytest.raises(Refused, match="acknowledged"):
                    client.claim("crm", "reader", after=done - 1)
        with connect(host.socket) as client:
            last = client.claim("crm", "reader", after=done)
            assert (last.number, last.items, last.backlog) == (None, 0, 0)
        assert sorted(map(int, seen)) == list(range(ITEMS))
        host.until_books({"accepted": ITEMS, "delivered": ITEMS}, "crm")


def test_items_that_warm_has_when_the_first_consumer_comes_are_its_own(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host), connect(host.socket) as client:
        push_numbers(client, 9000)
        lease = client.lease("crm", 10, wait_s=HANG_S, lease_s=3600)
        assert len(lease) == 10
        host.until_counts("crm", spooled=0)
        got: list[bytes] = []
        done = 0

        def next_claim() -> Claim:
            claim = client.claim("crm", "reader", after=done)
            assert claim.number is not None, f"{len(got)} items were read"
            return claim

        while len(got) < 8990:
            claim = eventually_sync(next_claim)
            got += payloads(rows_of(client, claim))
            done = claim.number or 0
        last = client.claim("crm", "reader", after=done)
        assert (last.number, last.backlog) == (None, 10)
        assert sorted(map(int, got)) == list(range(10, 9000))
        # Given back, they follow.
        lease.release()
        claim = eventually_sync(next_claim)
        assert sorted(map(int, payloads(rows_of(client, claim)))) == list(range(10))
        host.until_books({"accepted": 9000, "delivered": 8990, "held": 10}, "crm")


def test_a_dropped_stream_gives_its_items_back_to_the_handler(tmp_path: Path) -> None:
    out = tmp_path / "out"
    queues = {"crm": {"handler": {"type": "file", "path": str(out)}}}
    host = Host(tmp_path, {"queues": queues})
    with running(host), connect(host.socket) as client:
        push_to_stream(host, client, 3000)
        claim = client.claim("crm", "reader", after=0, items=1000)
        assert (claim.number, claim.items) == (1, 1000)
        assert not out.exists()
        assert client.stream_drop("crm", "reader") == 1000
        with pytest.raises(Refused, match="NOT_FOUND"):
            client.stream_drop("crm", "reader")
        host.until_books({"accepted": 3000, "delivered": 3000}, "crm")
        assert client.stream_status("crm", "reader").acknowledged == 0
        with pytest.raises(Refused, match="NOT_FOUND"):
            client.fetch("crm", "reader", 1)


def test_looks_change_nothing(tmp_path: Path) -> None:
    queues = {"crm": {"warm_max_items": 1000}}
    host = Host(tmp_path, {"queues": queues})
    with running(host), connect(host.socket) as client:
        push_numbers(client, 5000)
        lease = client.lease("crm", 7, wait_s=HANG_S)
        lease.ack(lease)
        books = {"accepted": 5000, "delivered": 7, "held": 4993}
        host.until_books(books, "crm")
        host.until_counts("crm", spooled=0)
        seen: list[int] = []
        for state in ("queued", "cold"):
            cursor: str | None = ""
            while cursor is not None:
                fetched = client.peek("crm", state, cursor=cursor, rows=2)
                seen += map(int, payloads(fetched.rows))
                cursor = fetched.cursor
        assert sorted(seen) == list(range(7, 5000))
        host.until_books(books, "crm")
        for bad in ("x", "-1", "9" * 50):
            for state in ("queued", "cold"):
                with pytest.raises(Refused, match="cursor"):
                    client.peek("crm", state, cursor=bad)


def test_streams_are_listed_with_how_far_they_are(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host), connect(host.socket) as client:
        assert host.ok("streams", "ls") == ""
        push_to_stream(host, client, 3000)
        claim = client.claim("crm", "reader", after=0, items=1000)
        assert claim.number == 1
        # Runs of 1,000 items, and a claim has whole runs.
        client.claim("crm", "reader", after=1, items=1000)
        client.claim("mail", "[b]", after=0)
        [crm, mail] = map(json.loads, host.ok("streams", "ls", "--json").splitlines())
        status = client.stream_status("crm", "reader")
        assert crm == {
            "queue": "crm",
            "consumer": "reader",
            "acknowledged": 1,
            "claim": 2,
            "rows": status.rows,
            "items": 1000,
            "bytes": status.bytes,
            "backlog": 1000,
        }
        assert (mail["claim"], mail["items"], mail["backlog"]) == (None, 0, 0)
        rows = [line.split() for line in host.ok("streams", "ls").splitlines()]
        assert rows[1:] == [
            ["crm", "reader", "1", "2", "1,000", "1,000"],
            ["mail", "[b]", "0", "–", "0", "0"],
        ]
        assert len(host.ok("streams", "ls", "--queue", "mail", "--json").splitlines()) == 1
        assert host.ok("streams", "ls", "--queue", "nowhere") == ""


def test_command_drops_a_stream_and_says_what_was_given_back(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host), connect(host.socket) as client:
        push_to_stream(host, client, 10)
        assert client.claim("crm", "reader", after=0).items == 10
        unasked = host.command("streams", "rm", "crm", "reader")
        assert unasked.returncode == 2
        assert b"Remove the consumer reader of crm" in unasked.stderr
        assert client.stream_status("crm", "reader").claim == 1
        done = host.ok("streams", "rm", "crm", "reader", "--yes")
        assert done == "reader of crm removed: 10 items given back\n"
        assert host.ok("streams", "ls") == ""
        assert len(client.lease("crm", 10, wait_s=HANG_S)) == 10
        assert host.command("streams", "rm", "crm", "reader", "--yes").returncode == 4
