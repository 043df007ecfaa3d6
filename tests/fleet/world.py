"""The world of a fleet: one PostgreSQL, one Valkey, and hosts whose daemons share them.

Every host has a front (front.py) before each server, and writes what it delivers to files of its
own, so that each delivery of each item is known. The fleet's books are the journals' and the shared
store's once (actors/spooler/report.py).
"""

import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import httpx

from forebay import Client, Item, Lease, Refused, connect, encode_run, wire
from forebay.link import Link
from tests import forked
from tests.crash.reconciled import reconcile_reports, reconciled
from tests.daemon.cli.commands import Host
from tests.eventually import at_once, eventually_sync
from tests.fleet.front import Front
from tests.servers.postgres import PORT, PostgresServer, postgres_server
from tests.servers.valkey import ValkeyServer, valkey_server

HASTE: Final = {"warm": "1s", "cold": "2s", "acquire": "3s", "handler": "1s"}
"""How long stores and handlers may take, and locks last, where a test wants them to run out."""
LEISURE: Final = {"warm": "3s", "cold": "3s", "acquire": "8s", "handler": "30s"}
"""Long enough for a slow machine: a lease ends only if its daemon is stopped or killed."""
PATIENCE_S: Final = 300.0
"""Nothing is measured by it: what never comes should fail the test."""
QUICK: Final = "tests.fleet.quick"
BOOKS: Final = ("accepted", "delivered", "dead", "dropped", "deleted", "lost", "held")

Condition = Callable[[], object]


class Member(Host):
    """A host of the fleet."""

    def __init__(self, directory: Path, fronts: dict[str, Front], config: dict[str, Any]) -> None:
        super().__init__(directory, config)
        self.name = directory.name
        self.valkey, self.postgres = fronts["valkey"], fronts["postgres"]
        self._log_file = directory / "daemon.log"
        self._launched_at = 0
        self.variables: dict[str, str] = {}
        """Of the daemon's environment, beside the usual ones."""

    def start(self, *options: str, anew: bool = True) -> None:
        """Starts the daemon and returns when it serves."""
        self.launch(*options)
        assert self.daemon is not None
        while not self._serves():
            if self.daemon.poll() is not None:
                raise AssertionError(self._log_file.read_text()[-4000:])

    def launch(self, *options: str) -> None:
        """Starts the daemon; when it serves is its business."""
        shared = ("--warm", "valkey", "--cold", "postgres")
        with self._log_file.open("ab") as log:
            self._launched_at = log.tell()
            env = self.environment | self.variables
            self.daemon = forked.start(["run", *shared, *options], env, log, module=QUICK)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """However it is."""
        if self.daemon is not None:
            self.resume()
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None
        self.valkey.close()
        self.postgres.close()

    def client(self, timeout: float = PATIENCE_S) -> Client:
        return connect(self.socket, timeout, wait=PATIENCE_S)

    def push(self, queue: str, items: int, **options: Any) -> None:
        with self.client() as client:
            client.push(queue, (f"{self.name}{at}" for at in range(items)), **options)

    def stats(self) -> dict[str, Any]:
        with self.client() as client:
            return client.stats()

    def queue(self, queue: str) -> dict[str, int]:
        """What it reports of a queue; nothing, if it has not heard of it."""
        found: dict[str, int] = self.stats()["queues"].get(queue, {})
        return found

    def delivered(self, queue: str) -> list[dict[str, Any]]:
        """The lines that its workers wrote, as they were written."""
        path = self.directory / f"{queue}.jsonl"
        if not path.exists():
            return []
        # A line that is being written, or was when the daemon was killed, has no end.
        lines = path.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"}\n")]

    def take(self, queue: str, items: int, lease_s: float = 60.0) -> "Taken":
        """Exactly so many items, leased by a consumer here, as they come."""
        return Taken(self, queue, items, lease_s)

    def drain(self, queue: str, items: int) -> list[str]:
        """The ids of so many items that a consumer here takes and acknowledges."""
        found: list[str] = []
        with self.client() as client:

            def take() -> None:
                with client.lease(queue, items - len(found), wait_s=0.2) as lease:
                    found.extend(item.id for item in lease)
                assert len(found) == items, f"{len(found)} of {items} items of {queue}"

            eventually_sync(take)
        return found

    def finds_nothing(self, queue: str) -> bool:
        """Whether a consumer here is given nothing; what it is given, it gives back."""
        with self.client() as client:
            lease = client.lease(queue, 1000)
            lease.release()
            return not lease

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log() if entry["event"] in names]

    def is_away(self, store: str) -> bool:
        """As its log has it."""
        return self.changes(store)[-1:] == ["away"]

    def changes(self, store: str) -> list[str]:
        """Of a store since this daemon was launched: it went away, it came back, in turn. It may
        be away before the daemon is ready. A machine that is very slow may have taken it for away
        more often than it was."""
        ways = (f"{store}.away", f"{store}.back")
        names = [entry["event"] for entry in self.log(self._launched_at)]
        return [name.split(".")[1] for name in names if name in ways]

    def check_changes(self, store: str) -> None:
        """One line per change, no matter how many daemons notice it."""
        changes = self.changes(store)
        assert all(before != after for before, after in pairwise(changes)), changes

    def refusal(self, queue: str, key: str) -> Refused:
        """The first answer to a keyed push that must not be taken now."""
        run = encode_run([b"payload"], queue=queue, keys=[key.encode()])
        link = Link(self.socket, "test", time.monotonic() + PATIENCE_S)
        try:
            head = wire.frame_head(wire.Kind.PUSH, 1, len(run))
            link.send([head, run], time.monotonic() + PATIENCE_S)
            [(kind, _, body)] = link.receive(PATIENCE_S)
        finally:
            link.close()
        assert kind is wire.Kind.ERROR, kind
        return wire.read_error(body)

    def metrics(self) -> dict[str, float]:
        """What /metrics says, which adds up."""
        [*_, ready] = self.events("daemon.ready")
        text = httpx.get(f"{ready['http']}/metrics", timeout=PATIENCE_S).text
        reconciled(text)
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        pairs = (line.rsplit(" ", 1) for line in lines)
        return {name: float(value) for name, value in pairs}


class Taken:
    """A consumer's leased items; it keeps the ones it has not acknowledged when it leaves."""

    def __init__(self, host: Member, queue: str, items: int, lease_s: float) -> None:
        self.items: list[Item] = []
        self._client = host.client()
        self._leases: list[Lease] = []
        try:
            self._take(queue, items, lease_s)
        except BaseException:
            self._client.abort()
            raise

    def _take(self, queue: str, items: int, lease_s: float) -> None:
        def take() -> None:
            left = items - len(self.items)
            lease = self._client.lease(queue, left, lease_s=lease_s, wait_s=0.2, keep=True)
            self._leases.append(lease)
            self.items += lease
            assert len(self.items) == items, f"{len(self.items)} of {items} items of {queue}"

        eventually_sync(take)

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.items]

    def ack(self, items: int | None = None) -> None:
        """All that nothing was said about; or the first ones, and the rest is given back."""
        for lease in self._leases:
            if items is not None:
                lease.release(lease[items:])
            lease.close()

    def nack(self, items: Iterable[Item], **why: Any) -> None:
        wanted = {item.id for item in items}
        for lease in self._leases:
            if own := [item for item in lease if item.id in wanted]:
                lease.nack(own, **why)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.abort()


class World:
    def __init__(self, directory: Path, postgres: PostgresServer, valkey: ValkeyServer) -> None:
        self.directory = directory
        self.postgres = postgres
        self.valkey = valkey
        self.database = postgres.create_database()
        self.hosts: list[Member] = []

    def add(self, name: str, config: dict[str, Any], times: dict[str, str] = LEISURE) -> Member:
        """A host, whose daemon does not run yet."""
        directory = self.directory / name
        directory.mkdir()
        (directory / "pg").mkdir()
        name_of_socket = f".s.PGSQL.{PORT}"
        fronts = {
            "valkey": Front(directory / "vk", self.valkey.path),
            "postgres": Front(
                directory / "pg" / name_of_socket, self.postgres.directory / name_of_socket
            ),
        }
        url = self.postgres.url(self.database).replace(
            str(self.postgres.directory), str(directory / "pg")
        )
        host = Member(directory, fronts, fleet_config(directory, url, config, times))
        self.hosts.append(host)
        return host

    def put_right(self) -> None:
        """Everything runs and is reached."""
        self.postgres.put_right()
        self.valkey.put_right()
        for host in self.hosts:
            host.valkey.restore()
            host.postgres.restore()
            if host.daemon is not None:
                host.resume()
            if host.daemon is None or host.daemon.poll() is not None:
                host.launch("--wait-for-stores")
        for host in self.hosts:
            with host.client() as client:
                client.ping()

    def books(self, queue: str) -> dict[str, int]:
        """The fleet's: of the journals, and of the shared store once."""
        reports = [host.stats() for host in self.hosts]
        reconcile_reports(reports)
        return fleet_books(reports, queue)

    def delivered(self, queue: str) -> Counter[str]:
        """How often each item was delivered, by its id."""
        return Counter(line["id"] for host in self.hosts for line in host.delivered(queue))

    def wait_delivered(self, queue: str, items: int) -> Counter[str]:
        """When so many items were delivered; how often each."""

        def check() -> Counter[str]:
            delivered = self.delivered(queue)
            assert len(delivered) >= items, f"{len(delivered)} of {items} items of {queue}"
            return delivered

        return eventually_sync(check)

    def wait_settled(self, queue: str) -> dict[str, int]:
        """When nothing is held; the fleet's books then."""
        return self.until_books(queue, held=0)

    def until_books(self, queue: str, **wanted: int) -> dict[str, int]:
        """Waits until the fleet's books say so, and returns them."""

        def check() -> dict[str, int]:
            with at_once():
                books = self.books(queue)
            assert wanted.items() <= books.items(), f"{queue}: {books}"
            # The hosts answer one after the other: what was handed over meanwhile may be missing.
            gone = sum(books[name] for name in BOOKS if name != "accepted")
            assert books["accepted"] == gone, f"{queue}: {books}"
            return books

        return eventually_sync(check)

    def close(self) -> None:
        for host in self.hosts:
            host.close()


def fleet_config(
    directory: Path, postgres_url: str, config: dict[str, Any], times: dict[str, str]
) -> dict[str, Any]:
    defaults = {"handler": {"type": "file", "path": str(directory / "{queue}.jsonl")}}
    defaults["handler"] |= {"batch_items": 50, "timeout": times["handler"]}  # type: ignore[dict-item]
    shared = {
        "fleet": True,
        "warm": {
            "type": "valkey",
            "url": f"unix://{directory / 'vk'}",
            "timeout": times["warm"],
        },
        "cold": {
            "type": "postgres",
            "url": postgres_url,
            "timeout": times["cold"],
            "acquire_timeout": times["acquire"],
        },
        "defaults": defaults,
        "log": {"format": "json"},
        "drain_timeout": "3s",
    }
    return {**shared, **config}


def fleet_books(reports: list[dict[str, Any]], queue: str) -> dict[str, int]:
    """Each daemon reports its journal and all of the shared store, which counts once here."""
    books = dict.fromkeys(BOOKS, 0)
    shared = reports[0]["shared"].get(queue, {})
    for report in reports:
        own, store = report["queues"].get(queue, {}), report["shared"].get(queue, {})
        for name in BOOKS:
            books[name] += own.get(name, 0) - store.get(name, 0)
    for name in BOOKS:
        books[name] += shared.get(name, 0)
    return books


def until(condition: Condition) -> None:
    def check() -> None:
        with at_once():
            found = condition()
        assert found, found

    eventually_sync(check)


@contextmanager
def world(valkey_options: tuple[str, ...] = ()) -> Iterator[World]:
    # Short: a socket's path must be; and open to the user who runs PostgreSQL.
    directory = Path(tempfile.mkdtemp(prefix="fbfl-", dir="/tmp"))
    directory.chmod(0o755)
    with postgres_server() as postgres, valkey_server(*valkey_options) as valkey:
        made = World(directory, postgres, valkey)
        try:
            yield made
        finally:
            made.close()
            if "FOREBAY_KEEP" in os.environ:
                print(f"kept: {directory}")
            else:
                shutil.rmtree(directory, ignore_errors=True)
