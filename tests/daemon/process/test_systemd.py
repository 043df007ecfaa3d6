"""What is said to systemd and taken from it, on real sockets; and the units themselves."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.config.settings import Settings, SocketSettings
from actors.model.books import JournalReport
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Inquire, SpoolerMessage
from daemon.journal.files import Files
from daemon.process import systemd
from daemon.process.listen import BACKLOG, CannotListen, open_socket
from daemon.process.systemd import Watchdog, answers, notify, reloading, take_inherited, watchdog_s
from tests.actors.spooler.spooling import HANG_S, make_run, running_spooler

UNITS = Path(__file__).parents[3] / "systemd"
PERIOD_S = 20.0


class Manager:
    """systemd's end of NOTIFY_SOCKET."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def heard(self) -> list[str]:
        """What has come since the last look."""
        found = []
        while True:
            try:
                found.append(self._sock.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["file", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    is_abstract = request.param == "abstract"
    address = f"@forebay-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address.replace("@", "\0") if is_abstract else address)
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield Manager(sock)


def test_notification_is_one_datagram(manager: Manager) -> None:
    assert notify("READY=1", "STATUS=serving")
    assert notify("STOPPING=1")
    assert manager.heard() == ["READY=1\nSTATUS=serving", "STOPPING=1"]


def test_reload_carries_its_time(manager: Manager) -> None:
    notify(*reloading())
    (said,) = manager.heard()
    first, second = said.split("\n")
    assert first == "RELOADING=1"
    assert second.removeprefix("MONOTONIC_USEC=").isdecimal()


def test_nobody_is_told_without_a_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with capture_logs() as logs:
        assert not notify("READY=1")
    assert logs == []


def test_manager_that_has_gone_is_logged_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with capture_logs() as logs:
        assert not notify("READY=1")
    assert [entry["event"] for entry in logs] == ["systemd.not_told"]


@pytest.mark.parametrize(
    "usec, pid, seconds",
    [
        ("20000000", "", 20.0),
        pytest.param("20000000", str(os.getpid()), 20.0, id="own-process"),
        ("20000000", "1", None),
        ("0", "", None),
        ("soon", "", None),
        ("", "", None),
    ],
)
def test_watchdog_is_fed_if_it_is_for_this_process(
    usec: str, pid: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    assert watchdog_s() == seconds


# The watchdog.


class HeldSpooler:
    """Answers at once, or when it is let."""

    def __init__(self) -> None:
        self.channel, self._inbox = trio.open_memory_channel[SpoolerMessage](2048)
        self.is_answering = True
        self._held: list[Inquire] = []

    async def run(self) -> None:
        async for message in self._inbox:
            assert isinstance(message, Inquire)
            self._held.append(message)
            if self.is_answering:
                self.answer_all()

    async def report(self) -> None:
        await SpoolerClient(self.channel).ask(Inquire())

    def answer_all(self) -> None:
        held, self._held = self._held, []
        for inquiry in held:
            inquiry.reply.put(cast(JournalReport, {}))


async def test_watchdog_is_fed_only_while_the_spooler_answers(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", str(int(PERIOD_S * 1e6)))
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    spooler = HeldSpooler()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spooler.run)
        with capture_logs() as logs:
            nursery.start_soon(Watchdog(answers(spooler.report)).run)
            await trio.sleep(3 * PERIOD_S + 1)
            assert manager.heard() == ["WATCHDOG=1"] * 7
            assert logs == []

            spooler.is_answering = False
            await trio.sleep(10 * PERIOD_S)
            assert manager.heard() == []
            assert [entry["event"] for entry in logs] == ["watchdog.no_progress"]

            spooler.is_answering = True
            spooler.answer_all()
            await trio.sleep(PERIOD_S / 2)
            assert set(manager.heard()) == {"WATCHDOG=1"}
            await trio.sleep(3 * PERIOD_S)
            assert manager.heard() == ["WATCHDOG=1"] * 6
            assert [entry["event"] for entry in logs][1:] == ["watchdog.progress_again"]
        nursery.cancel_scope.cancel()


async def test_stuck_spooler_is_in_the_log_before_systemd_acts(
    manager: Manager, autojump_clock: MockClock
) -> None:
    spooler = HeldSpooler()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spooler.run)
        nursery.start_soon(Watchdog(answers(spooler.report), PERIOD_S).run)
        await wait_all_tasks_blocked()
        assert manager.heard() == ["WATCHDOG=1"]
        spooler.is_answering = False
        with capture_logs() as logs:
            await trio.sleep(0.9 * PERIOD_S)
        assert [entry["event"] for entry in logs] == ["watchdog.no_progress"]
        # It is not too late: the question that was asked meanwhile is answered.
        spooler.answer_all()
        await wait_all_tasks_blocked()
        assert manager.heard() == ["WATCHDOG=1"]
        nursery.cancel_scope.cancel()


async def test_watchdog_that_nobody_asked_for_ends_at_once(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)

    async def never() -> bool:
        raise AssertionError

    await Watchdog(never).run()
    assert manager.heard() == []


async def test_disk_that_hangs_is_no_progress(tmp_path: Path) -> None:
    is_syncing, may_sync = threading.Event(), threading.Event()

    class HangingDisk(Files):
        def datasync(self, fd: int) -> None:
            if threading.current_thread().name == "forebay-commit":
                is_syncing.set()
                may_sync.wait(HANG_S)
            super().datasync(fd)

    may_sync.set()
    async with running_spooler(tmp_path, HangingDisk(tmp_path)) as desk:
        check = answers(desk.stats)
        assert await check()
        heard: list[bool] = []

        async def ask() -> None:
            heard.append(await check())

        may_sync.clear()
        is_syncing.clear()
        await desk.submit([make_run()])
        await trio.to_thread.run_sync(is_syncing.wait, HANG_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert heard == []
            may_sync.set()
        assert heard == [True]


async def test_finished_spooler_is_not_stuck() -> None:
    channel, inbox = trio.open_memory_channel[SpoolerMessage](1)
    inbox.close()
    assert await answers(lambda: SpoolerClient(channel).ask(Inquire()))()


# Sockets that are passed.


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Iterator["Passing"]:
    passing = Passing(monkeypatch)
    yield passing
    passing.close()


class Passing:
    """Passes sockets to this very process, from a descriptor on that is free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.fds: list[int] = []

    def __call__(self, *fds: int, names: str | None = None, pid: int | None = None) -> None:
        self.fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 500) for fd in fds]
        assert self.fds == list(range(self.fds[0], self.fds[0] + len(fds)))
        self._monkeypatch.setattr(systemd, "FIRST_FD", self.fds[0])
        self._monkeypatch.setenv("LISTEN_FDS", str(len(fds)))
        self._monkeypatch.setenv("LISTEN_PID", str(pid or os.getpid()))
        if names is not None:
            self._monkeypatch.setenv("LISTEN_FDNAMES", names)

    def close(self) -> None:
        for fd in self.fds:
            # Taken over, it may be closed already.
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.sock"


@pytest.fixture
def held(path: Path) -> Iterator[socket.socket]:
    """The socket as systemd holds it."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        yield sock


def settings(path: Path) -> SocketSettings:
    return SocketSettings(path=path)


async def test_passed_socket_is_used_and_its_file_stays(
    path: Path, held: socket.socket, passing: Passing
) -> None:
    passing(held.fileno(), names="forebay.socket")
    before = os.stat(path)
    with capture_logs() as logs, socket.socket(socket.AF_UNIX) as client:
        with open_socket(settings(path)) as listening:
            assert listening.path == path
            client.connect(str(path))
            async with await listening.listener.accept() as stream:
                await stream.send_all(b"hello")
            assert client.recv(5) == b"hello"
        # The holder listens still: the next daemon finds who connects now.
        with socket.socket(socket.AF_UNIX) as early:
            early.connect(str(path))
    assert logs == []
    assert os.path.samestat(os.stat(path), before)


def test_passed_socket_is_taken_once_and_not_by_children(
    path: Path, held: socket.socket, passing: Passing
) -> None:
    passing(held.fileno(), names="forebay.socket")
    ((fd, name),) = take_inherited()
    assert name == "forebay.socket"
    assert not os.get_inheritable(fd)
    assert take_inherited() == []
    assert not [variable for variable in os.environ if variable.startswith("LISTEN_")]


def test_sockets_without_names_are_taken(held: socket.socket, passing: Passing) -> None:
    passing(held.fileno(), held.fileno())
    assert [name for _, name in take_inherited()] == ["", ""]


def test_socket_for_another_process_is_left_alone(
    path: Path, held: socket.socket, passing: Passing
) -> None:
    passing(held.fileno(), pid=1)
    assert take_inherited() == []
    # The daemon then opens its own, and finds that somebody listens.
    with pytest.raises(CannotListen, match="another process listens"):
        open_socket(settings(path))


def test_other_path_is_warned_of(
    path: Path, held: socket.socket, passing: Passing, tmp_path: Path
) -> None:
    passing(held.fileno())
    with capture_logs() as logs, open_socket(settings(tmp_path / "other")) as listening:
        assert listening.path == path
    (entry,) = logs
    assert entry["event"] == "listen.path_differs"
    assert (entry["listening"], entry["configured"]) == (str(path), str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_same_place_by_another_name_is_the_same(
    path: Path, held: socket.socket, passing: Passing, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    passing(held.fileno())
    with capture_logs() as logs, open_socket(settings(tmp_path / "link" / path.name)):
        assert logs == []


def test_file_that_is_gone_is_warned_of(path: Path, held: socket.socket, passing: Passing) -> None:
    passing(held.fileno())
    path.unlink()
    with capture_logs() as logs, open_socket(settings(path)):
        pass
    assert [entry["event"] for entry in logs] == ["listen.file_is_gone"]


def test_abstract_socket_is_shown_as_it_is_written(path: Path, passing: Passing) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"\0forebay-test-{os.getpid()}")
        sock.listen()
        passing(sock.fileno())
        with capture_logs(), open_socket(settings(path)) as listening:
            assert str(listening.path) == f"@forebay-test-{os.getpid()}"


@pytest.mark.parametrize("kind", ["datagram", "seqpacket", "tcp", "not listening", "file", "two"])
def test_wrong_socket_is_refused(
    kind: str, path: Path, held: socket.socket, passing: Passing, tmp_path: Path
) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as seqpacket,
        socket.socket(socket.AF_INET) as tcp,
        socket.socket(socket.AF_UNIX) as plain,
        open(tmp_path / "file", "w") as file,
    ):
        tcp.listen()
        seqpacket.bind(str(tmp_path / "seqpacket"))
        seqpacket.listen()
        expected = "must be a Unix stream socket that listens"
        match kind:
            case "datagram":
                passing(datagram.fileno())
            case "seqpacket":
                passing(seqpacket.fileno())
            case "tcp":
                passing(tcp.fileno())
            case "not listening":
                passing(plain.fileno())
            case "file":
                passing(file.fileno(), names="stored")
                expected = "stored: not a socket"
            case _:
                passing(held.fileno(), held.fileno(), names="a:b")
                expected = "2 sockets instead of one: a, b"
        with pytest.raises(CannotListen, match=expected):
            open_socket(settings(path))


# The units.


def read_unit(name: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = defaultdict(list)
    for line in (UNITS / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values[key].append(value)
    return values


def test_units_agree_with_the_daemon() -> None:
    service, sock = read_unit("forebay.service"), read_unit("forebay.socket")
    defaults = Settings()
    assert sock["ListenStream"] == [str(defaults.socket.path)]
    assert [int(mode, 8) for mode in sock["SocketMode"]] == [defaults.socket.mode]
    assert sock["Backlog"] == [str(BACKLOG)]
    assert service["StateDirectory"] == [defaults.state_dir.name]
    assert service["RuntimeDirectory"] == [defaults.socket.path.parent.name]
    assert service["RuntimeDirectoryPreserve"] == ["yes"]
    assert service["Type"] == ["notify"]
    (stop,) = service["TimeoutStopSec"]
    assert int(stop.removesuffix("s")) > defaults.drain_timeout


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd's tools are not installed"
)
def test_units_are_understood_by_systemd(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        # The program must exist, and need not be forebay.
        text = unit.read_text().replace("ExecStart=/usr/bin/forebay", f"ExecStart={sys.executable}")
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    # An unknown key is a line of output and no failure.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
