"""The real daemon delivering: reloads, pauses, dead letters and old items, as operators see it."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from forebay import connect
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync


def reconfigure(host: Host, *said_last: str, **changes: Any) -> None:
    """Writes the configuration anew, tells the daemon, and waits until it has said this."""
    assert host.daemon is not None
    said = len(host.log())
    host.config.write_text(json.dumps(json.loads(host.config.read_text()) | changes))
    host.daemon.send_signal(signal.SIGHUP)

    def answered() -> None:
        heard = [entry["event"] for entry in host.log()[said:]]
        assert heard[-len(said_last) :] == list(said_last)

    eventually_sync(answered)


def lines(path: Path) -> list[str]:
    return [json.loads(line)["payload"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "handler,problem",
    [
        ({"type": "python", "function": "no_such_module:f"}, "no_such_module"),
        ({"type": "python", "function": "json:no_such_function"}, "no_such_function"),
        ({"type": "command", "command": ["no-such-program"]}, "no-such-program"),
        (
            {"type": "http", "url": "https://host/", "ca_file": "/no/such/file"},
            "/no/such/file",
        ),
        ({"type": "http", "url": "ftp://host/"}, "http(s)://HOST"),
    ],
    ids=["module", "function", "program", "certificate", "url"],
)
def test_handler_that_cannot_work_keeps_the_daemon_from_starting(
    tmp_path: Path, handler: dict[str, Any], problem: str
) -> None:
    host = Host(tmp_path, {"queues": {"crm": {"handler": handler}}})
    done = host.command("run")
    assert done.returncode in (1, 3)
    (line,) = done.stderr.decode().strip().splitlines()
    assert "queues.crm.handler" in line
    assert problem in line


def test_reload_changes_a_handler_and_drops_no_connection(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    host = Host(tmp_path, {"queues": {"crm": {"handler": {"type": "file", "path": str(first)}}}})
    with running(host), connect(host.socket) as client:
        client.push("crm", ["a"])
        host.until_books({"accepted": 1, "delivered": 1}, "crm")
        after = {"crm": {"handler": {"type": "file", "path": str(second)}}}
        reconfigure(host, "daemon.reloaded", queues=after)
        client.push("crm", ["b"])
        host.until_books({"accepted": 2, "delivered": 2}, "crm")
        assert lines(first) == ["a"]
        assert lines(second) == ["b"]
        assert host.stop() == 0


def test_reload_of_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    good = {"crm": {"handler": {"type": "file", "path": str(out)}}}
    host = Host(tmp_path, {"queues": good})
    with running(host), connect(host.socket) as client:
        for bad in (
            {"crm": {"max_retries": -1}},
            {"crm": {"handler": {"type": "python", "function": "no_such_module:f"}}},
        ):
            reconfigure(host, "daemon.not_reloaded", queues=bad)
        client.push("crm", ["a"])
        host.until_books({"accepted": 1, "delivered": 1}, "crm")
        said = ("daemon.reloaded", "daemon.restart_needed")
        reconfigure(host, *said, queues=good, drain_timeout="7s")


def test_pause_outlives_a_restart(tmp_path: Path) -> None:
    out = tmp_path / "out"
    host = Host(tmp_path, {"queues": {"crm": {"handler": {"type": "file", "path": str(out)}}}})
    with running(host):
        host.ok("queues", "pause", "crm")
        host.ok("push", "crm", "-", stdin=b"a\nb\n")
        assert host.stop() == 0
        host.start()
        host.ok("push", "crm", "-", stdin=b"c\n")
        host.until_books({"accepted": 3, "held": 3}, "crm")
        assert not out.exists()
        host.ok("queues", "resume", "crm")
        host.until_books({"accepted": 3, "delivered": 3}, "crm")
        assert lines(out) == ["a", "b", "c"]


def test_dead_letters_from_push_to_retry(tmp_path: Path) -> None:
    """A program that refuses some items, until it is mended."""
    program = tmp_path / "deliver"
    program.write_text("#!/bin/sh\ngrep -q odd && exit 65\nexit 0\n")
    program.chmod(0o755)
    handler = {"type": "command", "command": [str(program)], "batch_items": 1}
    host = Host(tmp_path, {"queues": {"crm": {"handler": handler}}})
    with running(host):
        host.ok("push", "crm", "-", stdin=b"odd 1\nfine\nodd 2\n")
        host.until_books({"accepted": 3, "delivered": 1, "dead": 2}, "crm")
        found = [json.loads(line) for line in host.ok("dead", "ls", "--json").splitlines()]
        assert len(found) == 2
        assert host.stop(signal.SIGKILL) != 0
        host.start()
        host.until_books({"accepted": 3, "delivered": 1, "dead": 2}, "crm")
        shown = host.ok("dead", "show", found[0]["id"])
        assert "odd" in shown
        assert "65" in shown
        host.ok("dead", "edit", found[0]["id"], "--payload-file", "-", stdin=b"mended")
        host.ok("dead", "retry", "--queue", "crm", "--yes")
        host.until_books({"accepted": 3, "delivered": 2, "dead": 1}, "crm")
        host.ok("dead", "rm", "--queue", "crm", "--yes")
        host.until_books({"accepted": 3, "delivered": 2, "deleted": 1}, "crm")


def test_old_items_do_not_keep_the_journal_on_disk(tmp_path: Path) -> None:
    """A few items that nobody pulls, in every chunk, and much that is delivered at once."""
    spool = {"chunk_size": "2Mi", "min_free_bytes": 0, "spare_chunks": 0, "compression": "none"}
    queues = {"busy": {"handler": {"type": "null"}}}
    host = Host(tmp_path, {"queues": queues, "spool": spool})
    with running(host), connect(host.socket) as client:
        for _ in range(12):
            client.push("idle", [b"wait"])
            client.push("busy", [bytes(1000)] * 1000, compressed=False)

        assert client.stats()["spool"]["writer_offset"] > 5 * 2**21

        def few() -> None:
            spool = client.stats()["spool"]
            assert spool["chunks"] <= 4, spool

        eventually_sync(few)
        host.until_books({"accepted": 12, "held": 12}, "idle")
        taken: list[bytes] = []
        while len(taken) < 12:
            with client.lease("idle", 12, wait_s=HANG_S) as items:
                assert items, taken
                taken += [item.payload for item in items]
        assert taken == [b"wait"] * 12


def test_drain_finishes_sends_and_begins_no_more_while_a_consumer_holds_a_lease(
    tmp_path: Path,
) -> None:
    """Nothing is cut off in the middle, and so nothing is delivered twice."""
    begun, out, go = (tmp_path / name for name in ("begun", "out", "go"))
    program = tmp_path / "deliver"
    wait = f"while ! test -e {go}; do sleep 0.05; done"
    program.write_text(f"#!/bin/sh\necho >> {begun}\n{wait}\ncat >> {out}\n")
    program.chmod(0o755)
    command = {"type": "command", "command": [str(program)], "batch_items": 1, "timeout": "1h"}
    queues = {"crm": {"handler": command, "workers": {"count": 2}}}
    host = Host(tmp_path, {"queues": queues, "drain_timeout": "1h"})
    with running(host):
        with connect(host.socket) as client:
            client.push("jobs", ["a"])
            lease = client.lease("jobs", 1, wait_s=HANG_S, lease_s=3600)
            assert len(lease) == 1
            client.push("crm", [str(number) for number in range(50)])
            eventually_sync(lambda: begun.exists() and len(begun.read_text()) == 2)
            assert host.daemon is not None
            host.daemon.send_signal(signal.SIGTERM)
            host.until_logged("daemon.draining")
            go.touch()

            def sent() -> None:
                books = client.stats()["queues"]["crm"]
                assert (books["delivered"], books["running"]) == (2, 0), books

            eventually_sync(sent)
            lease.release()
        assert host.daemon.wait(HANG_S) == 0
        assert len(begun.read_text()) == len(lines(out)) == 2
        host.start()
        host.until_books({"accepted": 50, "delivered": 50}, "crm")
        assert sorted(lines(out), key=int) == [str(number) for number in range(50)]
        host.until_books({"accepted": 1, "held": 1}, "jobs")
