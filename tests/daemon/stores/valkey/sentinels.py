"""A primary, its replica and a Sentinel that watches them: real processes, on ports of their own.

One Sentinel decides alone. It waits for a silent primary until a test expects the failover
(`wait_promoted`), so that a slow machine makes no primary of the replica. Whoever asks it is told
where the primary is.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.eventually import eventually_sync
from tests.servers.ports import free_port
from tests.servers.valkey import ValkeyServer, binaries

SERVICE = "main"
DOWN_AFTER_MS = 300
NEVER_MS = 3_600_000
PATIENCE_S = 120.0
"""Nothing is measured by it: what never comes should fail the test."""


class Sentinel:
    """It can be ended and started again: what it has found out stays in its file."""

    def __init__(self, directory: Path, primary: int, binary: Path, *lines: str) -> None:
        self.directory = directory
        self.port = free_port()
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "sentinel.conf").write_text(
            "\n".join(
                (
                    f"port {self.port}",
                    "bind 127.0.0.1",
                    f"sentinel monitor {SERVICE} 127.0.0.1 {primary} 1",
                    f"sentinel down-after-milliseconds {SERVICE} {NEVER_MS}",
                    f"sentinel failover-timeout {SERVICE} 3000",
                    *lines,
                    "",
                )
            )
        )

    @property
    def url(self) -> str:
        return f"sentinel://127.0.0.1:{self.port}/{SERVICE}"

    def start(self) -> None:
        with (self.directory / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "sentinel.conf", "--sentinel"],
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )
        until(lambda: self.command("PING"))

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def command(self, *args: str | int) -> object:
        with redis.Redis("127.0.0.1", self.port, socket_timeout=PATIENCE_S) as client:
            return client.execute_command(*args)

    def primary(self) -> int:
        """The port that it names."""
        found = self.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        assert isinstance(found, list | tuple)
        return int(found[1])

    def takes_for_down_after(self, silent_ms: int) -> None:
        self.command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", silent_ms)

    def names(self, server: ValkeyServer) -> None:
        """From now on this one is the primary, without any failover."""
        self.command("SENTINEL", "REMOVE", SERVICE)
        self.command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", server.port, 1)


class Replicated:
    """`old` is the primary at first, and `new` its replica."""

    def __init__(self, directory: Path, name: str) -> None:
        binary = binaries()[name]
        (directory / "old").mkdir()
        (directory / "new").mkdir()
        quick = ("--repl-diskless-sync-delay", "0")
        self.old = ValkeyServer(directory / "old", binary, *quick, has_port=True)
        follows = ("--replicaof", f"127.0.0.1 {self.old.port}")
        self.new = ValkeyServer(directory / "new", binary, *quick, *follows, has_port=True)
        self.sentinel = Sentinel(directory, self.old.port, binary)

    def start(self) -> None:
        self.old.start()
        self.new.start()
        until(lambda: info(self.new)["master_link_status"] == "up")
        self.sentinel.start()
        # It must have heard of the replica, or there is nobody to promote.
        until(lambda: self.sentinel.command("SENTINEL", "REPLICAS", SERVICE))

    def wait_replicated(self) -> None:
        """Until `new` has everything that `old` has written so far. (WAIT looks at what its own
        connection has written.)"""
        written = info(self.old)["master_repl_offset"]
        until(lambda: info(self.new)["slave_repl_offset"] >= written)

    def swap(self) -> None:
        """The two change places, while all connections stay."""
        self.new.become_primary()
        self.old.command("REPLICAOF", "127.0.0.1", self.new.port)
        self.sentinel.names(self.new)

    def wait_promoted(self) -> None:
        """Until the Sentinel names the one that was the replica, and that has become primary."""
        self.sentinel.takes_for_down_after(DOWN_AFTER_MS)
        until(lambda: self.sentinel.primary() == self.new.port)
        self.sentinel.takes_for_down_after(NEVER_MS)
        until(lambda: info(self.new)["role"] == "master")

    def close(self) -> None:
        self.sentinel.kill()
        self.old.close()
        self.new.close()


@contextmanager
def replicated(name: str = "valkey") -> Iterator[Replicated]:
    directory = Path(tempfile.mkdtemp(prefix="fb-sentinel-"))
    made = Replicated(directory, name)
    try:
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(directory, ignore_errors=True)


def info(server: ValkeyServer, section: str = "replication") -> dict[str, Any]:
    found = server.command("INFO", section)
    assert isinstance(found, dict)
    return found


def until(is_so: Callable[[], object]) -> None:
    """What other processes do is waited for, or the test fails."""

    def check() -> None:
        found = is_so()
        assert found, found

    eventually_sync(check, errors=(redis.RedisError,), deadline_s=PATIENCE_S)
