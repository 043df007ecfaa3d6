"""`make demo SERVERS=1`: two hosts that share a Valkey and a PostgreSQL, both of which fail.

Events are pushed at host `a` alone and delivered by the workers of both to a CRM that is down for a
while, fails now and then, and does not know some customers. In the middle Valkey is killed and
comes back empty, PostgreSQL is restarted, and host `a` is killed with -9 and started again. In the
end every event must have been taken by the CRM or be a dead letter; the books of the fleet are the
journals' and the shared store's, once. Exits 1 if they do not balance. No Spark, and so no Java.

What it leaves to look at lies under ./.state/demo-fleet until the next one.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import forebay
from bench.daemon_process import ROOT, Daemon, Places
from bench.demo.__main__ import Destination, _free_port
from bench.demo.patience import IDLE_S, Failed, Patience
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.valkey import ValkeyServer, valkey_server

EVENTS: Final = 150_000
RUN_ITEMS: Final = 500
LOOK_S: Final = 0.25
LINE_S: Final = 2.0
DOWN_S: Final = 2.0
QUEUE: Final = "crm"
VALKEY_AT, POSTGRES_AT, HOST_AT = 0.15, 0.35, 0.55
"""Shares of the events that are delivered when it happens."""
BOOKS: Final = ("accepted", "delivered", "dead", "dropped", "deleted", "lost", "held")


@dataclass(slots=True)
class Host(Daemon):
    """A daemon of the fleet."""

    shared: Mapping[str, Any] = field(default_factory=dict)

    def _settings(self) -> dict[str, Any]:
        return Daemon._settings(self) | dict(self.shared)


@dataclass(slots=True)
class Fleet:
    console: Console
    destination: Destination
    valkey: ValkeyServer
    postgres: PostgresServer
    hosts: dict[str, Host]
    patience: Patience = field(default_factory=Patience)
    next_line: float = 0.0
    last_line: str = ""

    def run(self, events: int) -> dict[str, int]:
        """The books, when everything is delivered or dead."""
        a = self.hosts["a"]
        with pushing(a, events) as pusher:
            self._wait_for(VALKEY_AT * events)
            self.console.print("kill -9 Valkey: it comes back in 2 s, empty")
            self.valkey.kill()
            time.sleep(DOWN_S)
            self.valkey.start()
            self._wait_for(POSTGRES_AT * events)
            self.console.print("PostgreSQL is stopped, for 2 s")
            self.postgres.stop()
            time.sleep(DOWN_S)
            self.postgres.start()
            self._wait_for(HOST_AT * events)
            self.console.print(f"kill -9 {a.pid}: host a is gone, with batches under way")
            a.kill()
            time.sleep(DOWN_S)
            a.start()
            self.console.print(f"host a is back as {a.pid}, in {a.ready_s:.2f} s")
            self.console.print("its leased items are free when their leases end, 30 s later")
            while pusher.is_alive():
                self._look(self._books())
        while True:
            books = self._books()
            if books["accepted"] == events and not books["held"]:
                return books
            self._look(books)

    def _wait_for(self, delivered: float) -> None:
        while (report := self.destination.report())["items"] < delivered:
            self._look(None, report)

    def _look(
        self, books: Mapping[str, int] | None, report: Mapping[str, Any] | None = None
    ) -> None:
        self.patience.look(books or (report and report["items"]))
        time.sleep(LOOK_S)
        if time.monotonic() >= self.next_line:
            taken = self.destination.report()["senders"]
            shares = ", ".join(f"by {name} {taken.get(f'/{name}', 0):,}" for name in self.hosts)
            held = "" if books is None else f"; held {books['held']:,}"
            line = f"delivered {shares}{held}"
            if line != self.last_line:
                self.next_line, self.last_line = time.monotonic() + LINE_S, line
                self.console.print(line, highlight=False)

    def _books(self) -> dict[str, int]:
        try:
            return fleet_books([host.stats() for host in self.hosts.values()], QUEUE)
        except forebay.ForebayError as problem:
            raise Failed(str(problem)) from problem


@contextmanager
def pushing(host: Host, events: int) -> Iterator[threading.Thread]:
    """Pushes beside what happens; a client of a host that is killed goes on when it is back."""
    problems: list[BaseException] = []

    def push() -> None:
        try:
            with forebay.connect(host.socket, IDLE_S) as client:
                client.push(QUEUE, payloads(events), run_items=RUN_ITEMS)
        except forebay.ForebayError as problem:
            problems.append(problem)

    thread = threading.Thread(target=push, daemon=True)
    thread.start()
    yield thread
    if problems or thread.is_alive():
        raise Failed(f"the producer did not come to its end: {problems}")


def payloads(events: int) -> Iterator[str]:
    for event in range(1, events + 1):
        yield json.dumps({"customer_id": event % 9973, "event_id": event, "amount": event % 100})


def fleet_books(reports: Sequence[Mapping[str, Any]], queue: str) -> dict[str, int]:
    """Each daemon reports its journal and all of the shared store, which counts once here."""
    shared = reports[0]["shared"].get(queue, {})
    books = {name: shared.get(name, 0) for name in BOOKS}
    for report in reports:
        own, store = report["queues"].get(queue, {}), report["shared"].get(queue, {})
        for name in BOOKS:
            books[name] += own.get(name, 0) - store.get(name, 0)
    return books


def problems_of(events: int, books: Mapping[str, int], taken: Mapping[str, Any]) -> list[str]:
    problems = []
    if not events == books["accepted"] == books["delivered"] + books["dead"]:
        problems.append(f"{events:,} events, and the books say {dict(books)}")
    if not taken["items"] == taken["events"] == books["delivered"]:
        problems.append(
            f"the CRM took {taken['items']:,} items and {taken['events']:,} different events, and "
            f"{books['delivered']:,} count as delivered"
        )
    if min((taken["senders"].get(path, 0) for path in ("/a", "/b")), default=0) == 0:
        problems.append(f"one host has delivered nothing: {taken['senders']}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make demo SERVERS=1", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--events", type=int, default=EVENTS, help=f"to push; {EVENTS:,}")
    events = parser.parse_args().events
    console = Console(highlight=False, soft_wrap=True)
    state = ROOT / ".state" / "demo-fleet"
    shutil.rmtree(state, ignore_errors=True)
    started = time.monotonic()
    with ExitStack() as stack:
        fleet = make_fleet(stack, console, state)
        try:
            books = fleet.run(events)
        except Failed as failure:
            console.print(f"[bold red]{failure}[/]")
            return 1
        taken = fleet.destination.report()
        print_books(console, events, fleet, taken, books)
        problems = problems_of(events, books, taken)
        for problem in problems:
            console.print(f"[bold red]{problem}[/]")
        if not problems:
            took = time.monotonic() - started
            console.print(
                f"[green]The books balance:[/] pushed = delivered + dead, in {took:.0f} s."
            )
        console.print(f"Logs: {os.path.relpath(state)}/a/daemon.log and …/b/daemon.log")
        console.print(f"The page: [bold]{fleet.hosts['a'].http_address}/queue-metrics[/]")
        if sys.stdin.isatty() and sys.stdout.isatty():
            console.input("Everything runs on until you press Enter. ")
    return 1 if problems else 0


def make_fleet(stack: ExitStack, console: Console, state: Path) -> Fleet:
    destination = Destination()
    stack.callback(destination.close)
    postgres = stack.enter_context(postgres_server(is_durable=True))
    valkey = stack.enter_context(valkey_server())
    database = postgres.url(postgres.create_database())
    console.print(f"Valkey at {valkey.url}, PostgreSQL at {database}")
    hosts: dict[str, Host] = {}
    for name in ("a", "b"):
        (state / name).mkdir(parents=True)
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-")))
        hosts[name] = stack.enter_context(
            Host(
                Places(state / name, sockets),
                queues=queues(f"{destination.url}{name}"),
                http_listen=f"127.0.0.1:{_free_port()}",
                shared=shared(valkey.url, database),
            )
        )
        console.print(
            f"host {name} runs as {hosts[name].pid}, its page at "
            f"[bold]{hosts[name].http_address}/queue-metrics[/]"
        )
    return Fleet(console, destination, valkey, postgres, hosts)


def shared(valkey: str, postgres: str) -> dict[str, Any]:
    return {
        "fleet": True,
        "warm": {"type": "valkey", "url": valkey, "timeout": "1s"},
        "cold": {"type": "postgres", "url": postgres, "timeout": "3s", "acquire_timeout": "10s"},
    }


def queues(url: str) -> dict[str, Any]:
    crm = {
        "handler": {"type": "http", "url": url, "batch_items": 250, "timeout": "5s"},
        "workers": {"count": 2},
        "max_retries": 20,
        "backoff": {"initial": "200ms", "max": "2s"},
        "breaker": {"threshold": 5, "reset_timeout": "1s"},
    }
    return {QUEUE: crm}


def print_books(
    console: Console,
    events: int,
    fleet: Fleet,
    taken: Mapping[str, Any],
    books: Mapping[str, int],
) -> None:
    table = Table("", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("host a", "host b", "the fleet"):
        table.add_column(column, justify="right")
    senders = taken["senders"]
    table.add_row("events pushed", f"{events:,}", "", f"{events:,}")
    table.add_row("accepted", "", "", f"{books['accepted']:,}")
    table.add_row(
        "taken by the CRM from", f"{senders.get('/a', 0):,}", f"{senders.get('/b', 0):,}",
        f"{taken['taken']:,}",
    )  # fmt: skip
    table.add_row("of these, again", "", "", f"{taken['taken'] - taken['items']:,}")
    table.add_row("delivered", "", "", f"{books['delivered']:,}")
    table.add_row("dead letters", "", "", f"{books['dead']:,}")
    console.print(table)
    over = next(iter(fleet.hosts.values())).stats()["shared"].get(QUEUE, {}).get("taken", 0)
    console.print(f"{over:,} items were handed over to PostgreSQL.")


if __name__ == "__main__":
    sys.exit(main())
