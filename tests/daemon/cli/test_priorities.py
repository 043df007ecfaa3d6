"""Labels of priorities: the daemon's configuration says what they stand for, to every producer."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import BadRun, connect
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

LABELS = {"now": 1, "whenever": 200}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with running(Host(tmp_path, {"priorities": LABELS})) as host:
        yield host


def pulled(host: Host, items: int) -> dict[str, int]:
    """The priorities of so many items, and of what is there besides."""
    found: dict[str, int] = {}
    while len(found) < items:
        lines = host.ok("pull", "crm", "-n", "10", "--wait", f"{HANG_S}s").splitlines()
        assert lines, f"no more than {found}"
        found |= {item["payload"]: item["priority"] for item in map(json.loads, lines)}
    return found


def test_push_asks_the_daemon_what_a_label_stands_for(host: Host) -> None:
    host.ok("push", "crm", "--priority", "whenever", stdin=b"late")
    host.ok("push", "crm", "--priority", "now", stdin=b"soon")
    host.ok("push", "crm", "--priority", "255", stdin=b"last")
    host.ok("push", "crm", stdin=b"usual")
    assert pulled(host, 4) == {"soon": 1, "usual": 5, "late": 200, "last": 255}


def test_a_label_that_is_not_known_is_refused_with_those_that_are(host: Host) -> None:
    done = host.command("push", "crm", "--priority", "high", stdin=b"x")
    assert done.returncode == 2
    assert b"there is no priority 'high': use 0 to 255" in done.stderr
    assert b"now (1), whenever (200)" in done.stderr
    assert "crm" not in json.loads(host.ok("stats", "--json"))["queues"]
    offer = ("items", "offer", "crm", "key", "payload", "--priority")
    for command in (offer, ("cron", "add", "s", "crm", "--every", "1h", "--priority")):
        done = host.command(*command, "300")
        assert done.returncode == 2
        assert b"--priority is 0 to 255 or a label, not '300'" in done.stderr
    done = host.command(*offer, "high")
    assert (done.returncode, b"now (1), whenever (200)" in done.stderr) == (2, True)


def test_a_client_resolves_labels_and_needs_nobody_for_numbers(host: Host) -> None:
    with connect(host.socket) as client:
        client.push("crm", ["a"], priority="now")
        client.push("crm", ["b"], priority="9")
        with pytest.raises(BadRun, match=r"no priority 'low': .*now \(1\)"):
            client.push("crm", ["c"], priority="low")
    assert pulled(host, 2) == {"a": 1, "b": 9}


def test_other_labels_are_in_force_after_a_reload(host: Host) -> None:
    host.config.write_text(json.dumps({"priorities": {"soon": 3}}))
    assert host.daemon is not None
    host.daemon.send_signal(signal.SIGHUP)
    with connect(host.socket) as client:
        eventually_sync(lambda: client.priorities() == {"soon": 3})
        client.push("crm", ["a"], priority="soon")
    assert pulled(host, 1) == {"a": 3}
