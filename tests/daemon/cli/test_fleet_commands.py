"""`forebay fleet`: the daemons that share a PostgreSQL, and one that is gone."""

import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.cli.fleet import hint, short_ids
from daemon.state.identity import daemon_id
from forebay import encode_run
from forebay.writes import WRITE_HEADER, new_write_id
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync
from tests.fleet.world import Member, World, world

LOOKS = 5
LONG_AGO_MS = 20 * 60_000
"""Longer than any test takes (tests/fleet/quick.py)."""


@pytest.fixture
def both() -> Iterator[World]:
    with world() as made:
        for name in ("a", "b"):
            made.add(name, {"queues": {"q": {"handler": {"type": "pull"}}}})
        made.put_right()
        yield made


def listed(host: Host) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in host.ok("fleet", "ls", "--json").splitlines()]
    return {line["daemon"]: line for line in lines}


def id_of(host: Host) -> str:
    return daemon_id(host.state_dir).hex()


def until_states(asked: Member, **wanted: str) -> None:
    """Waits until the daemon lists exactly these states, by the daemon's id."""

    def agrees() -> None:
        with asked.client() as client:
            daemons = client.control("fleet.ls")["daemons"]
        assert {each["daemon"]: each["state"] for each in daemons} == wanted

    eventually_sync(agrees)


def make_old(fleet: World, daemon: str) -> None:
    """The daemon was last seen long ago, and handed something over a minute before."""
    fleet.postgres.sql(
        f"UPDATE forebay.daemons SET seen_ms = seen_ms - {LONG_AGO_MS}, "
        f"last_hand_over_ms = seen_ms - {LONG_AGO_MS + 60_000} "
        f"WHERE id = decode('{daemon}', 'hex')",
        fleet.database,
    )


def seen_ms(fleet: World, host: Member) -> int:
    statement = f"SELECT seen_ms FROM forebay.daemons WHERE id = decode('{id_of(host)}', 'hex')"
    return int(fleet.postgres.sql(statement, fleet.database))


def test_daemons_of_an_idle_fleet_are_running_for_as_long_as_one_looks(both: World) -> None:
    a, b = both.hosts
    until_states(a, **{id_of(a): "running", id_of(b): "running"})
    for _ in range(LOOKS):
        before = seen_ms(both, b)
        for host, other in ((a, b), (b, a)):
            found = listed(host)
            assert {each["state"] for each in found.values()} == {"running"}
            assert (found[id_of(host)]["is_this"], found[id_of(other)]["is_this"]) == (True, False)
        eventually_sync(lambda before=before: seen_ms(both, b) > before)  # type: ignore[misc]

    def shown() -> None:
        [head, *rows] = a.ok("fleet", "ls").splitlines()
        assert head.split("  ")[0] == "daemon"
        assert "cannot reach" in head
        [this] = [row for row in rows if "running (this one)" in row]
        assert this.startswith(id_of(a)[:12])
        assert "  now  " in this
        assert this.rstrip().endswith("never")

    eventually_sync(shown)


def stage(host: Member, items: int) -> None:
    write = new_write_id()
    headers = {WRITE_HEADER: write.hex()}
    with host.client() as client:
        part = client.stage(write)
        part.submit(encode_run([b"x"] * items, queue="q", headers=headers))
        part.seal()


def test_a_killed_daemon_is_lost_and_can_be_forgotten(both: World) -> None:
    a, b = both.hosts
    a.push("q", 3)
    stage(a, 5)
    until_states(b, **{id_of(a): "running", id_of(b): "running"})
    # What was pushed is handed over; what is staged is not.
    eventually_sync(lambda: listed(b)[id_of(a)]["backlog"] == 5)
    a.kill()
    seen = b.command("fleet", "rm", id_of(a))
    assert seen.returncode == 5
    assert b"was seen less than 900 s ago" in seen.stderr
    make_old(both, id_of(a))
    until_states(b, **{id_of(a): "lost", id_of(b): "running"})

    shown = b.command("fleet", "ls")
    [row] = [line for line in shown.stdout.decode().splitlines() if " lost " in line]
    assert row.startswith(id_of(a)[:12])
    assert re.search(r"  2\dm ago  .*  2\dm ago", row), row
    assert re.search(
        r" is lost: last seen 2\dm ago with 5 items not handed over, last hand-over 2\dm ago; "
        r"start a daemon on its state directory to drain it\n$",
        shown.stderr.decode(),
    ), shown.stderr

    gone = b.command("fleet", "rm", id_of(a))
    assert gone.stdout.decode().startswith(id_of(a)), gone.stderr
    assert gone.stdout.endswith(b" removed\n")
    assert b"its journal held 5 items when it was last seen" in gone.stderr
    until_states(b, **{id_of(b): "running"})
    again = b.command("fleet", "rm", id_of(a))
    assert again.returncode == 4
    assert b"NOT_FOUND" in again.stderr
    # It returns after all, with what its journal holds.
    a.start()
    until_states(b, **{id_of(a): "running", id_of(b): "running"})
    eventually_sync(lambda: listed(b)[id_of(a)]["backlog"] == 5)


def test_a_daemon_that_stops_in_good_order_is_stopped_and_never_lost(both: World) -> None:
    a, b = both.hosts
    until_states(b, **{id_of(a): "running", id_of(b): "running"})
    a.stop(signal.SIGTERM)
    until_states(b, **{id_of(a): "stopped", id_of(b): "running"})
    make_old(both, id_of(a))
    until_states(b, **{id_of(a): "stopped", id_of(b): "running"})


def test_a_daemon_that_does_not_reach_valkey_says_so(both: World) -> None:
    a, b = both.hosts
    a.push("q", 1)
    a.valkey.refuse()
    eventually_sync(lambda: listed(b)[id_of(a)]["unreachable"] == ["valkey"])
    assert listed(b)[id_of(b)]["unreachable"] == []
    a.valkey.restore()
    eventually_sync(lambda: listed(b)[id_of(a)]["unreachable"] == [])


def test_short_ids_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    ids = ["0198c0de0a0070008000000000000001", "0198c0de0a0070018000000000000001"]
    assert short_ids([{"daemon": ids[0]}]) == {ids[0]: "0198c0de0a00"}
    assert list(short_ids([{"daemon": id_} for id_ in ids]).values()) == [
        "0198c0de0a007000",
        "0198c0de0a007001",
    ]


def test_the_hint_counts_one_item_as_one() -> None:
    daemon = {"host": "node", "daemon": "0198c0de0a0070008000000000000001", "seen_ms": 0}
    lost = {**daemon, "backlog": 1, "last_hand_over_ms": None}
    assert "last seen 2m ago with 1 item not handed over, last hand-over never;" in (
        hint(lost, 120_000)
    )
    assert "with everything handed over" in hint({**lost, "backlog": 0}, 120_000)


def test_a_daemon_alone_says_that_it_is_no_fleet() -> None:
    directory = Path(tempfile.mkdtemp(prefix="fbal-", dir="/tmp"))
    try:
        with running(Host(directory)) as host:
            refused = host.command("fleet", "ls")
            assert refused.returncode == 5
            assert b"this daemon is not part of a fleet" in refused.stderr
    finally:
        if "FOREBAY_KEEP" not in os.environ:
            shutil.rmtree(directory, ignore_errors=True)
