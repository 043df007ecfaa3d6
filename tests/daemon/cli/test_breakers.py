"""`forebay breakers`, `forebay dead groups`, `forebay stats --watch`, as an operator types them."""

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.daemon.cli.commands import FOREBAY, HANG_S, Host, running
from tests.eventually import eventually_sync

REFUSING = "http://127.0.0.1:9"
"""Nobody listens on the port of `discard`."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    breaker = {"threshold": 2, "reset_timeout": "1h"}
    http = {"type": "http", "url": f"{REFUSING}/hook"}
    backoff = {"initial": "1ms", "max": "1ms"}
    queues = {
        "crm": {"handler": http, "breaker": breaker, "backoff": backoff, "max_retries": 9},
        "fine": {"handler": {"type": "null"}},
        "lost": {"handler": {"type": "command", "command": ["false"]}, "max_retries": 0},
    }
    with running(Host(tmp_path_factory.mktemp("breakers"), {"queues": queues})) as host:
        yield host


def breakers(host: Host) -> dict[str, dict[str, object]]:
    found = map(json.loads, host.ok("breakers", "ls", "--json").splitlines())
    return {at["destination"]: at for at in found}


def test_breakers_are_listed_and_forced_by_destination_or_queue(host: Host) -> None:
    host.ok("push", "crm", stdin=b"x")
    host.ok("push", "fine", stdin=b"x")
    host.until_books({"accepted": 1, "delivered": 1}, "fine")

    def opened() -> dict[str, object]:
        found = breakers(host).get(REFUSING, {})
        assert found.get("state") == "open", found
        return found

    crm = eventually_sync(opened)
    assert crm["queues"] == ["crm"]
    assert crm["failures"] == 2
    assert "refused" in str(crm["last_error"])
    shown = host.ok("breakers", "ls")
    assert re.search(rf"{REFUSING} +open, tried again in \d+ s +2 +crm +connection refused", shown)
    # What it has found out by itself stays.
    assert "is open, tried again in" in host.ok("breakers", "set", REFUSING, "auto")

    assert host.ok("breakers", "set", "fine", "open") == "null is open, by an operator\n"
    host.ok("push", "fine", stdin=b"y")
    host.until_books({"accepted": 2, "delivered": 1, "held": 1}, "fine")
    assert host.ok("breakers", "set", "null", "auto") == "null is closed\n"
    host.until_books({"accepted": 2, "delivered": 2}, "fine")
    closed = json.loads(host.ok("breakers", "set", "crm", "closed", "--json"))
    assert (closed["destination"], closed["failures"]) == (REFUSING, 0)

    unknown = host.command("breakers", "set", "nowhere", "open")
    assert unknown.returncode == 4
    assert b"no queue delivers to nowhere" in unknown.stderr


def test_dead_letters_are_counted_by_error(host: Host) -> None:
    host.ok("push", "lost", stdin=b"1\n2\n3\n")
    host.until_books({"accepted": 3, "dead": 3}, "lost")
    [group] = map(json.loads, host.ok("dead", "groups", "--queue", "lost", "--json").splitlines())
    assert (group["count"], group["queue"]) == (3, "lost")
    assert "exit code 1" in group["error"]
    assert group["example"] in host.ok("dead", "show", group["example"])
    shown = host.ok("dead", "groups", "--queue", "lost")
    assert re.search(rf"^ +3  lost .* {group['example']} .*exit code 1", shown, re.MULTILINE)
    nothing = host.command("dead", "groups", "--error", "no such text")
    assert (nothing.stdout, nothing.stderr) == (b"", b"no dead letters\n")


def test_watching_in_a_pipe_is_lines_with_rates(host: Host) -> None:
    lines = host.ok("stats", "--watch", "0.1", "--count", "2").splitlines()
    [first, second] = [line for line in lines if " queue=* " in line]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ queue=\* accepted=\d+ delivered=", first)
    assert re.search(r" accepted=\d+ accepted_s=0.0 delivered=\d+ delivered_s=[\d.]+ ", second)
    rows = list(map(json.loads, host.ok("stats", "-w", "0.1", "-n", "1", "--json").splitlines()))
    assert {row["queue"] for row in rows} >= {"*"}
    assert all(row["at_ms"] > 0 for row in rows)
    alone = host.command("stats", "5")
    assert (alone.returncode, alone.stderr.count(b"\n")) == (2, 1)
    assert b"go with --watch" in alone.stderr


def test_watching_on_a_terminal_is_refreshed_in_place(host: Host) -> None:
    ours, theirs = pty.openpty()
    command = [*FOREBAY, "stats", "--watch", "0.1", "--count", "3"]
    environment = host.environment | {"TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as watching:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # The other end is closed.
                break
        assert watching.wait(HANG_S) == 0
    os.close(ours)
    assert shown.count(b"all queues") >= 3
    assert b"\x1b[1A" in shown, "the lines before are written over"
    assert str(host.socket).encode() in shown
