"""Triggers with a real daemon: made by a command, run, killed, changed by a reload."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync


def jobs(directory: Path) -> dict[str, Any]:
    """The jobs that were delivered, by their ids."""
    file = directory / "jobs.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    # The last line of a file that is being written may not be whole.
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return {line["id"]: json.loads(line["payload"]) for line in whole}


class Gate:
    """Jobs that say when they begin, and end when they are let through."""

    def __init__(self, directory: Path) -> None:
        for name in ("begun", "gate"):
            os.mkfifo(directory / name)
        # For both, so that opening waits for nobody.
        self._begun, self._gate = (
            os.fdopen(os.open(directory / name, os.O_RDWR), "r+b", buffering=0)
            for name in ("begun", "gate")
        )
        script = f"cat >{directory}/begun && timeout 600 head -c 1 {directory}/gate"
        self.command = ["sh", "-c", script]

    def next_begun(self) -> tuple[str, str]:
        """The next job that was handed to the command: its id, and what it says."""
        job = json.loads(self._begun.readline())
        return job["id"], job["payload"]

    def let_through(self, jobs: int) -> None:
        self._gate.write(b"." * jobs)

    def close(self) -> None:
        self._begun.close()
        self._gate.close()


def test_a_day_in_the_life_of_a_trigger(tmp_path: Path) -> None:
    handler = {"type": "file", "path": str(tmp_path / "jobs.jsonl")}
    doomed = {"handler": {"type": "command", "command": ["false"]}, "max_retries": 0}
    gate = Gate(tmp_path)
    gated = {"handler": {"type": "command", "command": gate.command, "timeout": "1h"}}
    queues = {"jobs": {"handler": handler}, "doomed": doomed, "slow": gated}
    pager = {"on": ["trigger_failed"], "queue": "alerts"}
    host = Host(tmp_path, {"queues": queues, "notifications": {"pager": pager}})
    with running(host):
        add = ["triggers", "add", "embed", "documents", "jobs", "--batch-size", "4"]
        out = host.ok(*add, "--polling-interval", "100ms", "--header", "team=a")
        assert out == "embed: every 100ms, documents into jobs\n"
        (listed,) = [json.loads(line) for line in host.ok("triggers", "ls", "--json").splitlines()]
        assert (listed["type"], listed["origin"], listed["jobs"]) == ("QUEUE", "control", 0)
        assert "embed" in host.ok("triggers", "ls")

        host.ok("push", "documents", stdin=b"".join(b"%d\n" % n for n in range(10)))
        host.until_counts("documents", accepted=10, delivered=10)
        found = jobs(tmp_path)
        assert sum(job["count"] for job in found.values()) == 10
        assert len({id_ for job in found.values() for id_ in job["ids"]}) == 10
        assert {job["trigger"] for job in found.values()} == {"embed"}

        # Nothing is claimed while it is paused, after a kill too.
        assert host.ok("triggers", "pause", "embed") == "embed paused\n"
        host.ok("push", "documents", stdin=b"x\ny\n")
        # A job is in a worker's hands when the daemon is killed: it comes again as the same, and
        # its items are its own all the while.
        host.ok("triggers", "add", "gated", "files", "slow", "--polling-interval", "100ms")
        host.ok("push", "files", stdin=b"1\n2\n3\n")
        first = gate.next_begun()
        host.stop(signal.SIGKILL)
        host.start()
        assert "(paused)" in host.ok("triggers", "show", "embed")
        assert gate.next_begun() == first
        host.until_counts("files", accepted=3, held=3)
        # The program of the first life is still there.
        gate.let_through(2)
        host.until_counts("files", accepted=3, delivered=3, held=0)
        host.until_counts("slow", accepted=1, delivered=1)
        gate.close()
        host.until_counts("documents", cold=2)
        assert host.ok("triggers", "run-now", "embed").endswith(" pushed to jobs, of 2 items\n")
        host.until_counts("documents", delivered=12)
        host.ok("triggers", "resume", "embed")

        # A reload brings one of the configuration, which is changed there.
        fixed = {"type": "QUEUE", "queue": "in", "target": "jobs", "polling_interval": "100ms"}
        fails = {**fixed, "queue": "bad", "target": "doomed"}
        nightly = {"type": "TIME", "target": "nights", "cron": "30 2 * * *"}
        config = json.loads(host.config.read_text())
        triggers = {"f": fixed, "n": nightly, "d": fails}
        host.config.write_text(json.dumps(config | {"triggers": triggers}))
        assert host.daemon is not None
        os.kill(host.daemon.pid, signal.SIGHUP)
        host.ok("push", "in", stdin=b"z\n")
        host.until_counts("in", accepted=1, delivered=1)
        # One whose job dies gives back what it had, and those are told who want to know.
        host.ok("push", "bad", stdin=b"z\n")
        host.until_counts("alerts", accepted=1)
        dead = "is dead: its items are given back"
        eventually_sync(lambda: dead in host.ok("triggers", "show", "d"))
        host.until_logged("triggers.failed")
        failed = [line for line in host.log() if line["event"] == "triggers.failed"]
        assert {line["trigger"] for line in failed} == {"d"}
        host.until_counts("bad", held=1)
        host.until_counts("nights", held=4)
        refused = host.command("triggers", "rm", "f", "--yes")
        assert (refused.returncode, b"change it there" in refused.stderr) == (5, True)
        assert host.ok("triggers", "rm", "embed", "--yes") == "embed removed\n"
        assert host.command("triggers", "show", "embed").returncode == 4
        # Its queue is anybody's again.
        host.ok("push", "documents", stdin=b"free\n")
        pulled = host.ok("pull", "documents", "-n", "1", "--wait", f"{HANG_S}s")
        assert json.loads(pulled)["payload"] == "free"
