"""systemd holds the listening socket: the daemon comes and goes, and clients do not notice.

The parent here does what systemd does: it binds and listens, and passes the socket to each daemon
as descriptor 3. `systemd-socket-activate` replaces itself by the daemon, so that its socket ends
with the first one; it starts one daemon in the last test.
"""

import json
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay import connect
from tests import forked
from tests.daemon.cli.commands import FOREBAY, HANG_S, Host, running
from tests.eventually import eventually_sync

RESTARTS = 8
KILL_EVERY = 4
"""Every fourth daemon is killed; the others drain."""
PUSHES_A_LIFE = 3
"""What each producer gets done before the daemon is stopped."""
ITEMS = 25

PASS_STDIN_AS_3 = 'export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@" 3<&0 0</dev/null'


class ActivatedHost(Host):
    """Its socket is not the daemon's."""

    def __init__(self, directory: Path, config: dict[str, Any] | None = None) -> None:
        super().__init__(directory, config)
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.socket))
        self.listening.listen(1024)

    def start(self, *, anew: bool = False) -> None:
        """Starts the daemon and does not wait: clients can connect all the time."""
        with open(self.directory / "daemon.log", "ab") as log:
            self.daemon = forked.start(["run"], self.environment, log, listening=self.listening)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ActivatedHost]:
    handler = {"type": "file", "path": str(tmp_path / "out.ndjson")}
    host = ActivatedHost(tmp_path, {"queues": {"crm": {"handler": handler}}})
    with host.listening:
        yield host


class Load:
    """Producers in threads. A push that fails ends its producer, and then the test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._is_over = False
        self._pushes: dict[str, int] = {}
        self._threads: list[threading.Thread] = []
        self.acknowledged: list[str] = []
        self.failures: list[BaseException] = []

    def keep_one_connection(self, name: str) -> None:
        with connect(self._path, HANG_S) as client:
            while not self._is_over:
                self._push(name, client.push)

    def connect_for_each_push(self, name: str) -> None:
        while not self._is_over:
            with connect(self._path, HANG_S) as client:
                self._push(name, client.push)

    def use_a_pusher(self, name: str) -> None:
        with connect(self._path, HANG_S) as client:
            while not self._is_over:
                payloads = self._payloads(name)
                with client.pusher("crm", run_items=2, window=4) as pusher:
                    pusher.send_all(payloads)
                self._done(name, payloads, pusher.result.items)

    def _push(self, name: str, push: Callable[..., Any]) -> None:
        payloads = self._payloads(name)
        self._done(name, payloads, push("crm", payloads, run_items=ITEMS // 3).items)

    def _payloads(self, name: str) -> list[str]:
        return [f"{name} {self._pushes[name]}.{index}" for index in range(ITEMS)]

    def _done(self, name: str, payloads: list[str], items: int) -> None:
        assert items == len(payloads)
        with self._changed:
            self._pushes[name] += 1
            self.acknowledged += payloads
            self._changed.notify_all()

    @contextmanager
    def running(self, *kinds: Callable[[str], None]) -> Iterator[None]:
        for kind in kinds:
            self._pushes[kind.__name__] = 0
            self._threads.append(
                threading.Thread(target=self._run, args=(kind, kind.__name__), daemon=True)
            )
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over = True

    def end(self) -> None:
        """Returns when the producers have finished what they have begun."""
        self._is_over = True
        for thread in self._threads:
            thread.join(HANG_S)
            assert not thread.is_alive()
        assert not self.failures

    def _run(self, kind: Callable[[str], None], name: str) -> None:
        try:
            kind(name)
        except BaseException as failure:
            with self._changed:
                self.failures.append(failure)
                self._changed.notify_all()

    def wait_for_pushes(self, count: int) -> None:
        """Until each producer has done so many more, or one has failed."""
        with self._changed:
            wanted = {name: done + count for name, done in self._pushes.items()}
            assert self._changed.wait_for(
                lambda: self.failures or all(self._pushes[name] >= n for name, n in wanted.items()),
                HANG_S,
            )
        if self.failures:
            raise self.failures[0]


def wait_until_nothing_is_held(path: Path) -> None:
    with connect(path, wait=HANG_S) as client:
        eventually_sync(lambda: client.stats()["daemon"]["held"] == 0)


def test_restarts_under_load_fail_no_push_and_lose_no_item(host: ActivatedHost) -> None:
    inode = host.socket.stat().st_ino
    load = Load(host.socket)
    with running(host):
        producers = (load.keep_one_connection, load.connect_for_each_push, load.use_a_pusher)
        with load.running(*producers):
            for number in range(1, RESTARTS + 1):
                load.wait_for_pushes(PUSHES_A_LIFE)
                how = signal.SIGTERM if number % KILL_EVERY else signal.SIGKILL
                assert host.stop(how) == (0 if how == signal.SIGTERM else -signal.SIGKILL)
                host.start()
            load.wait_for_pushes(PUSHES_A_LIFE)
            load.end()
        wait_until_nothing_is_held(host.socket)
        pushed = load.acknowledged
        assert len(set(pushed)) == len(pushed)
        books = host.books("crm")
        assert books["accepted"] == books["delivered"] == len(pushed)
        # Runs that were stored though their acknowledgement was lost.
        assert books.keys() <= {"accepted", "delivered", "duplicate"}
        assert host.stop() == 0
    payloads: dict[str, str] = {}
    for line in (host.directory / "out.ndjson").read_text().splitlines():
        item = json.loads(line)
        # A daemon that was killed may have delivered what the next one delivers again.
        assert payloads.setdefault(item["id"], item["payload"]) == item["payload"]
    assert sorted(payloads.values()) == sorted(pushed)
    assert host.socket.stat().st_ino == inode
    assert not [entry for entry in host.log() if entry["event"].startswith("listen.")]


def test_pushes_wait_for_the_daemon_in_the_backlog(host: ActivatedHost) -> None:
    load = Load(host.socket)
    with load.running(load.keep_one_connection, load.connect_for_each_push):
        is_waiting, _, _ = select.select([host.listening], [], [], HANG_S)
        assert is_waiting
        with running(host):
            load.wait_for_pushes(1)
            load.end()


def test_other_path_in_the_configuration_is_warned_of(host: ActivatedHost) -> None:
    held = host.socket
    host.socket = host.directory / "other.sock"
    with running(host):
        with connect(held) as client:
            client.push("crm", ["x"])
        assert host.stop() == 0
    (entry,) = [entry for entry in host.log() if entry["event"] == "listen.path_differs"]
    assert (entry["listening"], entry["configured"]) == (str(held), str(host.socket))
    assert not host.socket.exists()
    assert held.exists()


def test_wrong_kind_of_socket_is_one_clear_line(host: ActivatedHost) -> None:
    with socket.socket(socket.AF_INET) as tcp:
        tcp.listen()
        done = subprocess.run(
            ["/bin/sh", "-c", PASS_STDIN_AS_3, "sh", *FOREBAY, "run"],
            env=host.environment,
            stdin=tcp.fileno(),
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert "must be a Unix stream socket that listens" in line


@pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None, reason="systemd's tools are not installed"
)
def test_systemd_starts_the_daemon_at_the_first_connection(tmp_path: Path) -> None:
    host = Host(tmp_path)
    passed = [f"--setenv={name}" for name in ("PATH", *host.environment) if "=" not in name]
    with subprocess.Popen(
        ["systemd-socket-activate", *passed, "-l", str(host.socket), *FOREBAY, "run"],
        env=host.environment,
        stderr=subprocess.PIPE,
    ) as activated:
        try:
            with connect(host.socket, wait=HANG_S) as client:
                client.push("crm", ["x", "y"])
                assert client.stats()["daemon"]["held"] == 2
            activated.terminate()
            assert activated.stderr is not None
            events = [line for line in activated.stderr.read().splitlines() if b"{" in line]
            assert activated.wait(HANG_S) == 0
        finally:
            activated.kill()
    assert b"daemon.stopped" in events[-1]
    assert not [line for line in events if b"listen." in line]
    assert host.socket.exists()


def test_systemd_hears_of_the_daemons_life(
    host: ActivatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(host.directory / "notify"))
        manager.settimeout(HANG_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(host.directory / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        with running(host):
            ready = f"READY=1\nSTATUS=serving on {host.socket}"
            heard: list[str] = []
            while ready not in heard or heard.count("WATCHDOG=1") < 3:
                heard.append(manager.recv(4096).decode())
            assert host.daemon is not None
            host.daemon.send_signal(signal.SIGTERM)
            while heard[-1] == "WATCHDOG=1":
                heard.append(manager.recv(4096).decode())
            assert heard[-1] == "STOPPING=1\nSTATUS=draining"
            assert host.daemon.wait(HANG_S) == 0
