"""`make demo`: events from Spark to a CRM that fails on the way, two crashes, and the books.

Spark cleans CRM events and pushes them as a stream with `format("forebay")`; the daemon delivers
them over HTTP to a CRM that is down for a while (the breaker opens), fails now and then (retries)
and does not know some customers (dead letters). In the middle the Spark driver is killed with -9
and started again, and so is the daemon. In the end every event must have been taken by the CRM or
be a dead letter, none of them twice in the queue; beside it stands what the same stream did through
`foreachBatch` and `foreachPartition`. Exits 1 if the books do not balance.

What it leaves to look at lies under ./.state/demo until the next demo.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.daemon_process import ROOT, Daemon, Places
from bench.demo.board import Board
from bench.demo.patience import Failed, Patience

EVENTS: Final = 400_000
LOOK_S: Final = 0.05
KILL_DAEMON_AT: Final = 0.7
"""A share of the events."""


class Destination:
    """The CRM, in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.demo.destination"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/"

    def report(self) -> dict[str, Any]:
        with urlopen(self.url, timeout=30) as answer:
            content: dict[str, Any] = json.load(answer)
            return content

    def close(self) -> None:
        self._process.communicate(timeout=30)


class Driver:
    """The Spark driver: a Python process, a JVM, and its workers, all in one group."""

    def __init__(self, directory: Path, socket: Path, events: int) -> None:
        self._directory = directory
        self._command = [
            sys.executable,
            *("-m", "bench.demo.driver"),
            *(str(directory), str(socket), str(events)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def phase(self) -> str:
        return str(self.read("phase").get("phase", "starting Spark"))

    def read(self, name: str) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self._directory / f"{name}.json").read_text())
        except FileNotFoundError:
            return {}
        return content

    def start(self) -> int:
        with (self._directory / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | {"PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )
        return self._process.pid

    def is_done(self) -> bool:
        """Whether it has come to its end. Failed if it ended otherwise."""
        assert self._process is not None
        code = self._process.poll()
        if code:
            raise Failed(f"the driver ended with {code}: see {self._directory / 'driver.log'}")
        return code == 0

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Demo:
    def __init__(self, daemon: Daemon, driver: Driver, board: Board) -> None:
        self._daemon = daemon
        self._driver = driver
        self._board = board
        self._patience = Patience()

    def run(self) -> dict[str, Any]:
        """The daemon's stats, when everything is delivered or dead."""
        pid = self._driver.start()
        self._board.say(f"the Spark driver runs as {pid}")
        self._wait_for_both()
        self._board.say(f"kill -9 {pid}: the driver is gone, with batches under way")
        self._driver.kill()
        self._board.say(f"started again as {self._driver.start()}, from its checkpoints")
        self._wait_for(KILL_DAEMON_AT)
        self._board.say(f"kill -9 {self._daemon.pid}: the daemon is gone as well")
        self._daemon.kill()
        self._daemon.start()
        self._board.say(f"started again as {self._daemon.pid}, in {self._daemon.ready_s:.2f} s")
        while not self._driver.is_done():
            self._look()
        return self._look()

    def _wait_for_both(self) -> None:
        """Until one way has had a batch accepted and the other is in the middle of one."""
        before = 0
        while True:
            plain = self._accepted("plain")
            if self._accepted("crm") and before < plain:
                return
            before = plain

    def _wait_for(self, share: float) -> None:
        while self._accepted("crm") < share * self._driver.read("counts")["clean"]:
            pass

    def _accepted(self, queue: str) -> int:
        if self._driver.is_done():
            raise Failed("the driver was done before it could be disturbed: try more --events")
        accepted: int = self._look()["queues"].get(queue, {}).get("accepted", 0)
        return accepted

    def _look(self) -> dict[str, Any]:
        time.sleep(LOOK_S)
        stats = self._daemon.stats()
        phase = self._driver.phase
        self._patience.look((phase, stats["queues"]))
        self._board.show(phase, self._driver.read("counts").get("clean"), stats)
        return stats


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--events", type=int, default=EVENTS, help=f"raw events; {EVENTS:,}")
    events = parser.parse_args().events
    console = Console(highlight=False)
    state = ROOT / ".state" / "demo"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    started = time.monotonic()
    with ExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-")))
        destination = Destination()
        stack.callback(destination.close)
        daemon = stack.enter_context(
            Daemon(
                Places(state, sockets),
                queues=_queues(destination.url),
                events={"mode": "all", "roll_interval": "2s"},
                # Not port 0: a page that is open finds the daemon again after its restart.
                http_listen=f"127.0.0.1:{_free_port()}",
            )
        )
        driver = Driver(state, daemon.socket, events)
        stack.callback(driver.kill)
        board = stack.enter_context(Board(console))
        board.say(f"forebay runs as {daemon.pid} on {daemon.socket}")
        board.say(f"watch it at [bold]{daemon.http_address}/queue-metrics[/] while it runs")
        try:
            stats = Demo(daemon, driver, board).run()
        except Failed as failure:
            board.say(f"[bold red]{failure}[/]")
            return 1
        taken = destination.report()
    pushed, drained = driver.read("counts"), driver.read("drained")
    _print_books(console, pushed, stats["queues"], taken, drained)
    problems = _problems(pushed["clean"], stats["queues"]["crm"], taken)
    for problem in problems:
        console.print(f"[bold red]{problem}[/]")
    if not problems:
        took = time.monotonic() - started
        console.print(
            f"[green]The books balance:[/] pushed = delivered + dead, in {took:.0f} s with Spark."
        )
    _print_places(console, state)
    return 1 if problems else 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _queues(url: str) -> dict[str, Any]:
    crm = {
        "handler": {"type": "http", "url": url, "batch_items": 500, "timeout": "10s"},
        "workers": {"count": 4},
        "max_retries": 20,
        "backoff": {"initial": "200ms", "max": "2s"},
        "breaker": {"threshold": 5, "reset_timeout": "1s"},
    }
    return {"crm": crm, "plain": {"handler": {"type": "pull"}}}


def _print_books(
    console: Console,
    pushed: Mapping[str, int],
    queues: Mapping[str, Mapping[str, int]],
    taken: Mapping[str, Any],
    drained: Mapping[str, int],
) -> None:
    console.print(
        f"{pushed['raw']:,} raw events, {pushed['aside']:,} put aside, "
        f"{pushed['clean']:,} customers' latest pushed, twice over:"
    )
    table = Table("", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column('format("forebay")', justify="right")
    table.add_column("foreachPartition", justify="right")
    crm, plain = queues["crm"], queues["plain"]
    clean = pushed["clean"]
    for name, ours, plainly in (
        ("rows to push", clean, clean),
        ("accepted by the daemon", crm["accepted"], plain["accepted"]),
        ("of these, duplicates", crm["accepted"] - clean, drained["items"] - drained["events"]),
        ("delivered to the CRM", crm["delivered"], None),
        ("dead letters", crm["dead"], None),
    ):
        table.add_row(name, f"{ours:,}", "" if plainly is None else f"{plainly:,}")
    console.print(table)
    answers = taken["answers"]
    console.print(
        f"The CRM answered 200 {answers.get('200', 0):,} times, 500 {answers.get('500', 0):,} "
        f"times, 503 {answers.get('503', 0):,} times; {taken['taken'] - taken['items']:,} items "
        "came to it again after the daemon's crash, with the same ids.",
        soft_wrap=True,
    )


def _problems(clean: int, crm: Mapping[str, int], taken: Mapping[str, Any]) -> list[str]:
    problems = []
    if not clean == crm["accepted"] == crm["delivered"] + crm["dead"]:
        problems.append(
            f"{clean:,} rows, {crm['accepted']:,} accepted, {crm['delivered']:,} delivered, "
            f"{crm['dead']:,} dead"
        )
    if not taken["items"] == taken["events"] == crm["delivered"]:
        problems.append(
            f"the CRM took {taken['items']:,} items and {taken['events']:,} different events, "
            f"and {crm['delivered']:,} count as delivered"
        )
    return problems


def _print_places(console: Console, state: Path) -> None:
    shown = Path(os.path.relpath(state))
    console.print("Look at:")
    for name, what in (
        ("raw, aside, clean", "the events as Parquet: as they came, what made no sense, the rest"),
        ("drained", "what foreachPartition had pushed, drained by readStream"),
        ("report/report.html", "what the event log says: percentiles, retries, outages, sizing"),
        ("daemon.log", "what the daemon said, both of its lives"),
        ("driver.log", "what Spark said"),
    ):
        console.print(f"  {shown}: {name}  {what}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
