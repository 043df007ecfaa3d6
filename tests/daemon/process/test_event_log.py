"""The event log of a real daemon: what became of the items, in files, also after kill -9."""

import gzip
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay import connect
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync

ITEMS = [f"item {number}" for number in range(300)]


def host(tmp_path: Path, handler: dict[str, Any], **events: Any) -> Host:
    queue = {
        "handler": handler,
        "max_retries": 1,
        "backoff": {"initial": "1ms", "max": "1ms"},
        "breaker": {"threshold": 1, "reset_timeout": "10ms"},
    }
    settings = {"mode": "all", **events}
    return Host(tmp_path, {"queues": {"crm": queue}, "events": settings})


def push(host: Host) -> None:
    with connect(host.socket) as client:
        client.push("crm", ITEMS)


def until(host: Host, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The report, once it is as wanted."""

    def found() -> dict[str, Any]:
        stats: dict[str, Any] = client.stats()
        assert is_so(stats), stats
        return stats

    with connect(host.socket) as client:
        return eventually_sync(found)


def until_idle(host: Host) -> dict[str, Any]:
    return until(host, lambda stats: not stats["daemon"]["held"])


def rows(host: Host) -> list[dict[str, Any]]:
    found = sorted((host.state_dir / "events").iterdir())
    assert all(path.name.endswith(".ndjson.gz") for path in found)
    lines = [line for path in found for line in gzip.decompress(path.read_bytes()).splitlines()]
    return [json.loads(line) for line in lines]


def items_by_outcome(rows: list[dict[str, Any]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == "slice":
            found[row["outcome"]] += row["items"]
    return found


def test_the_events_of_a_daemon_agree_with_its_books(tmp_path: Path) -> None:
    with running(host(tmp_path, {"type": "null"})) as daemon:
        push(daemon)
        stats = until_idle(daemon)
        assert daemon.stop() == 0
        assert stats["events"]["mode"] == "all"
        assert stats["events"]["dropped_total"] == 0
        found = rows(daemon)
    assert items_by_outcome(found) == {"delivered": stats["daemon"]["delivered"]}
    life = [row["state"] for row in found if row["kind"] == "daemon"]
    assert life == ["started", "draining", "stopped"]
    (staffed,) = [row for row in found if row["kind"] == "queue"]
    assert (staffed["queue"], staffed["destination"]) == ("crm", "null")
    assert staffed["workers"] > 0
    slices = [row for row in found if row["kind"] == "slice"]
    assert all(row["processing_ms"] >= 0 and row["wait_ms"] >= 0 for row in slices)
    assert len({(row["host"], row["pid"]) for row in found}) == 1


def test_failures_are_noted_with_their_error_and_the_breaker(tmp_path: Path) -> None:
    failing = {"type": "command", "command": ["false"], "batch_items": 100}
    with running(host(tmp_path, failing)) as daemon:
        push(daemon)
        until_idle(daemon)
        daemon.stop()
        found = rows(daemon)
    assert items_by_outcome(found) == {"retry": 300, "dead": 300}
    failed = [row for row in found if row["kind"] == "slice"]
    assert {row["attempt"] for row in failed if row["outcome"] == "dead"} == {2}
    assert all(row["error"] for row in failed)
    phases = [row["state"] for row in found if row["kind"] == "breaker"]
    assert phases[:2] == ["open", "half_open"]


def test_after_kill_9_the_next_life_finishes_what_was_written(tmp_path: Path) -> None:
    with running(host(tmp_path, {"type": "null"})) as daemon:
        push(daemon)
        until_idle(daemon)
        until(daemon, lambda stats: stats["events"]["written_total"] > 0)
        daemon.stop(signal.SIGKILL)
        left = [path.name for path in (daemon.state_dir / "events").iterdir()]
        assert [name.endswith(".part") for name in left] == [True]
        daemon.start()
        daemon.stop()
        found = rows(daemon)
    assert "started" in {row.get("state") for row in found}
    assert len({row["pid"] for row in found}) == 2


def test_off_by_default(tmp_path: Path) -> None:
    quiet = host(tmp_path, {"type": "null"}, mode="off")
    with running(quiet) as daemon:
        push(daemon)
        until_idle(daemon)
        daemon.stop()
    assert not (quiet.state_dir / "events").exists()
