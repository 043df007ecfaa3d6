"""`forebay fleet`: who is there, and what a host that never returns has left in Valkey."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.state.identity import daemon_id
from forebay import encode_run
from forebay.writes import WRITE_HEADER, new_write_id
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync
from tests.fleet.world import Member, World, world

PULLED: dict[str, Any] = {name: {"handler": {"type": "pull"}} for name in ("left", "mixed")}
PULLED["written"] = {"handler": {"type": "pull"}, "max_retries": 0}


@pytest.fixture(scope="module")
def both() -> Iterator[World]:
    with world() as made:
        made.add("a", {"queues": PULLED})
        made.add("b", {"queues": PULLED})
        made.add("c", {"auto_create_queues": False, "defaults": {"handler": {"type": "pull"}}})
        for host in made.hosts:
            # Long enough that a daemon on a busy machine does not lapse while it is there.
            config = json.loads(host.config.read_text())
            config["warm"]["valid"] = "5s"
            host.config.write_text(json.dumps(config))
            host.launch("--wait-for-stores")
        made.put_right()
        yield made


def listed(host: Host) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in host.ok("fleet", "ls", "--json").splitlines()]
    return {line["daemon"]: line for line in lines}


def id_of(host: Host) -> str:
    return daemon_id(host.state_dir).hex()


def seen(host: Member, daemon: str) -> dict[str, Any]:
    """As `listed`, without a command: for who waits. Nothing, if it is not known there."""
    with host.client() as client:
        daemons = client.control("fleet.list")["daemons"]
    return next((each for each in daemons if each["daemon"] == daemon), {})


def until_has(host: Member, owner: Member, queue: str, *, items: int, leased: int = 0) -> None:
    """Waits until the owner has so much of a queue in Valkey."""
    wanted = {"queue": queue, "items": items, "leased": leased}

    def has() -> None:
        assert wanted in seen(host, id_of(owner)).get("queues", [])

    eventually_sync(has)


def wait_for_lapse(lost: Member, other: Member) -> None:
    eventually_sync(lambda: not seen(other, id_of(lost))["is_valid"], f"{lost.name} has lapsed")


def test_what_a_lost_daemon_has_in_valkey_is_adopted_and_delivered_again_if_it_returns(
    both: World,
) -> None:
    a, b, _ = both.hosts
    a.push("left", 100, run_items=20)
    until_has(b, a, "left", items=100)
    found = listed(b)
    assert found[id_of(a)]["state"] == "valid"
    assert not found[id_of(a)]["is_this"]

    refused = b.command("fleet", "adopt", id_of(a), "--yes")
    assert refused.returncode == 5
    assert b"CONFLICT" in refused.stderr
    assert b"is alive, and valid for" in refused.stderr

    done = b.drain("left", 3)
    a.kill()
    wait_for_lapse(a, b)
    assert listed(b)[id_of(a)]["state"].startswith("lapsed for")
    assert b.finds_nothing("left")
    asked = b.command("fleet", "adopt", id_of(a))
    assert asked.returncode == 2
    assert b"pass --yes to confirm" in asked.stderr

    told = b.command("fleet", "adopt", id_of(a)[:12], "--yes")
    assert told.stdout == f"{id_of(a)}: 97 items adopted\n".encode(), told.stderr
    assert b"it delivers them again, with the same ids" in told.stderr
    again = b.command("fleet", "adopt", id_of(a), "--yes")
    assert b": 0 items adopted" in again.stdout
    taken = b.drain("left", 97)
    assert len({*done, *taken}) == 100
    assert b.finds_nothing("left")
    eventually_sync(lambda: b.queue("left")["delivered"] >= 97)
    eventually_sync(lambda: [entry["items"] for entry in b.events("fleet.adopted")] == [97])
    # It returns after all: its journal has them, and they are delivered again.
    a.start()
    assert sorted(b.drain("left", 97)) == sorted(taken)


def test_what_another_host_has_in_hand_stays_and_attempts_go_along(both: World) -> None:
    a, b, c = both.hosts
    a.push("mixed", 10)
    with b.take("mixed", 3, lease_s=3600) as in_hand:
        with b.take("mixed", 1, lease_s=3600) as failing:
            [failed] = failing.ids
            failing.nack(failing.items, delay_s=0, error="not now")
            failing.ack()
        until_has(b, a, "mixed", items=10, leased=3)
        a.kill()
        wait_for_lapse(a, b)
        # Who cannot store it takes nothing out, and lets others have it at once.
        refused = c.command("fleet", "adopt", id_of(a), "--yes")
        assert refused.returncode == 4
        assert b"UNKNOWN_QUEUE" in refused.stderr
        until_has(b, a, "mixed", items=10, leased=3)
        told = b.command("fleet", "adopt", id_of(a), "--yes")
        # Other tests may have left items of other queues there.
        assert b" items adopted" in told.stdout
        assert b"3 items leased by others" in told.stderr
        in_hand.ack()
    with b.take("mixed", 7) as taken:
        assert {item.id: item.attempt for item in taken.items if item.attempt} == {failed: 1}
        assert len({*taken.ids, *in_hand.ids}) == 10
        taken.ack()
    a.start()


def adopted(host: Member, lost: Member) -> int:
    """How many items."""
    done = host.ok("fleet", "adopt", id_of(lost), "--yes", "--json")
    return int(json.loads(done)["items"])


def publish(host: Member, queue: str, items: int) -> bytes:
    write = new_write_id()
    rows = [f"{at}".encode() for at in range(items)]
    with host.client() as client:
        part = client.stage(write)
        part.submit(encode_run(rows, queue=queue, headers={WRITE_HEADER: write.hex()}))
        client.publish(write, [part.seal().stage])
    return write


def until_receipt(host: Member, write: bytes, **wanted: int) -> None:
    """Waits until a receipt says this."""

    def agrees() -> None:
        with host.client() as client:
            found = client.receipt(write)
        assert {name: getattr(found, name) for name in wanted} == wanted

    eventually_sync(agrees)


def test_a_receipt_goes_on_where_the_items_are_when_their_owner_is_lost(both: World) -> None:
    a, b, c = both.hosts
    write = publish(a, "written", 20)
    b.drain("written", 5)
    until_receipt(c, write, delivered=5)
    with b.take("written", 3, lease_s=3600) as in_hand, b.take("written", 2) as failing:
        a.kill()
        # Nobody reads of it any more: these two are dead, and in no journal but the lost one's.
        in_hand.ack()
        failing.nack(failing.items, error="no")
        failing.ack()
    wait_for_lapse(a, b)
    until_receipt(b, write, accepted=20, delivered=5, dead=0, pending=15)
    # Perhaps with what another test has left there; and nothing the second time.
    assert adopted(b, a) >= 12
    until_receipt(c, write, delivered=8)
    assert adopted(b, a) == 0
    until_receipt(c, write, delivered=8)
    b.kill()
    b.start()
    with b.take("written", 12) as taken:
        spent = [item for item in taken.items if item.attempt]
        assert [item.attempt for item in spent] == [1, 1]
        taken.nack(spent, error="no")
        taken.ack()
    for host in (b, c):
        until_receipt(host, write, accepted=20, delivered=18, dead=2, pending=0)
    a.start()


def test_the_daemon_at_hand_and_unknown_ones_are_not_adopted(both: World) -> None:
    a, b, _ = both.hosts
    a.push("left", 1)
    eventually_sync(lambda: seen(a, id_of(a)) != {})
    mine = a.command("fleet", "adopt", id_of(a), "--yes")
    assert mine.returncode == 5
    assert b"this is the daemon itself" in mine.stderr
    unknown = b.command("fleet", "adopt", "ffffffffffff", "--yes")
    assert unknown.returncode == 4
    assert b"NOT_FOUND" in unknown.stderr
    eventually_sync(lambda: "valid (this one)" in a.ok("fleet", "ls"))


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
