"""Schedules with a real daemon: delivered, killed, changed by a command, by a reload."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from forebay import connect
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync


def beats(directory: Path) -> list[int]:
    """The ticks that were delivered, in order."""
    file = directory / "beats.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    # The last line of a file that is being written may not be whole.
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return [int(line["headers"]["tick_ms"]) for line in whole]


def beating(directory: Path, **schedule: Any) -> Host:
    handler = {"type": "file", "path": str(directory / "beats.jsonl")}
    every = {"queue": "beats", "every": "1s", "missed": "run_all", **schedule}
    return Host(directory, {"queues": {"beats": {"handler": handler}}, "schedules": {"s": every}})


def wait_for(directory: Path, count: int) -> None:
    def delivered() -> None:
        found = beats(directory)
        assert len(found) >= count, found

    eventually_sync(delivered)


def test_ticks_are_delivered_once_each_across_a_kill(tmp_path: Path) -> None:
    host = beating(tmp_path)
    with running(host):
        wait_for(tmp_path, 2)
        host.stop(signal.SIGKILL)
        host.start()
        wait_for(tmp_path, 6)
        host.stop()
    found = beats(tmp_path)
    # What was delivered just before the kill may come again, as everything: with the same id.
    ids = [json.loads(line)["id"] for line in (tmp_path / "beats.jsonl").read_text().splitlines()]
    assert len(set(ids)) == len(set(found))
    assert sorted(set(found)) == list(range(found[0], max(found) + 1, 1000))
    events = [line["event"] for line in host.log() if line["event"].startswith("cron.")]
    assert events == ["cron.installed"]


def test_a_day_in_the_life_of_a_schedule_on_the_command_line(tmp_path: Path) -> None:
    with running(Host(tmp_path)) as host, connect(host.socket) as client:
        add = ["cron", "add", "nightly", "jobs", "--payload", '{"a": 1}', "--json-payload"]
        out = host.ok(*add, "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--priority", "low")
        assert out.startswith("nightly: 30 2 * * * (Europe/Berlin) into jobs, next ")
        assert "nightly" in host.ok("cron", "ls")
        (listed,) = [json.loads(line) for line in host.ok("cron", "ls", "--json").splitlines()]
        assert (listed["origin"], listed["settings"]["priority"]) == ("control", "low")
        shown = host.ok("cron", "show", "nightly")
        assert "\n  last: never\n" in shown
        assert "\n  zone: Europe/Berlin\n" in shown
        assert json.loads(host.ok("cron", "show", "nightly", "--json")) == listed
        assert len(host.ok("cron", "next", "nightly", "-n", "7").splitlines()) == 7
        host.until_books({"accepted": 4, "held": 4}, "jobs")

        assert " pushed to jobs" in host.ok("cron", "run-now", "nightly")
        with client.lease("jobs", 9, wait_s=HANG_S) as lease:
            (item,) = list(lease)
            assert (item.payload, item.headers["schedule"]) == (b'{"a":1}', "nightly")
        host.until_books({"accepted": 5, "delivered": 1, "held": 4}, "jobs")

        refused = host.command("cron", "add", "nightly", "jobs", "--every", "10s")
        assert refused.returncode == 5
        assert b"there is a schedule nightly already" in refused.stderr
        assert host.command("cron", "add", "x", "jobs", "--cron", "nonsense").returncode == 5
        host.stop(signal.SIGKILL)
        host.start()
        assert "nightly" in host.ok("cron", "ls")
        assert host.command("cron", "rm", "nightly").returncode == 2
        host.ok("cron", "rm", "nightly", "--yes")
        host.until_books({"accepted": 5, "delivered": 1, "deleted": 4}, "jobs")


def test_a_reload_changes_and_removes_schedules(tmp_path: Path) -> None:
    host = Host(tmp_path, {"schedules": {"s": {"queue": "q", "every": "1h"}}})
    with running(host), connect(host.socket) as client:
        host.until_books({"accepted": 4, "held": 4}, "q")
        config = json.loads(host.config.read_text())

        def agree(wanted: dict[str, int]) -> None:
            queues = client.stats()["queues"].items()
            held = {name: books["held"] for name, books in queues if books["held"]}
            assert held == wanted

        for schedules, queue in (({"s": {"queue": "r", "every": "1h"}}, "r"), ({}, None)):
            host.config.write_text(json.dumps({**config, "schedules": schedules}))
            assert host.daemon is not None
            os.kill(host.daemon.pid, signal.SIGHUP)
            wanted = {queue: 4} if queue else {}
            eventually_sync(partial(agree, wanted))
        assert client.control("cron.list")["schedules"] == []
