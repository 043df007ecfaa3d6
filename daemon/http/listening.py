"""Opens the HTTP server's listening socket and publishes its address.

It is opened before anything else starts, so that a taken address is reported at once; clients wait
in its backlog until the daemon serves. While it is open, the file `http.address` in the state
directory holds its address: with port 0 the system chooses a free port.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from actors.config.settings import HttpSettings, Settings
from daemon.errors import ConfigError

log = structlog.get_logger()

BACKLOG: Final = 128
ADDRESS_FILE: Final = "http.address"


@contextmanager
def open_http(settings: Settings) -> Iterator[socket.socket | None]:
    """The listening socket; None if HTTP is off.

    Raises ConfigError if the address is unavailable, unless it is the default: two daemons on one
    host must not fail because of the default."""
    try:
        sock = _listen(settings.http)
    except OSError as problem:
        text = f"http.listen: {settings.http.listen}: {problem.strerror or problem}"
        if was_asked_for(settings):
            raise ConfigError(text) from problem
        log.warning("http.off", error=text, hint="--http HOST:PORT chooses another address")
        sock = None
    if sock is None:
        yield None
        return
    file = settings.state_dir / ADDRESS_FILE
    try:
        _write_address(file, address_of(sock))
        yield sock
    finally:
        with suppress(FileNotFoundError):
            file.unlink()
        sock.close()


def was_asked_for(settings: Settings) -> bool:
    return "http" in settings.model_fields_set and "listen" in settings.http.model_fields_set


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(settings: HttpSettings) -> socket.socket | None:
    if settings.listen is None:
        return None
    host, _, port = settings.listen.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _write_address(file: Path, address: str) -> None:
    """Writes the address for commands and tests, atomically."""
    new = file.with_suffix(".new")
    new.write_text(address + "\n")
    new.replace(file)
