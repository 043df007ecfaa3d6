"""PostgreSQL with TLS: a real server that has it, and a front before one that has none.

The front does what a server does: it is asked whether it has TLS, says so, shakes hands, and passes
on what it hears to a Unix socket. So whatever build of PostgreSQL is found can be reached with TLS.
"""

import os
import pwd
import random
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

from tests.daemon.handlers.http.certificates import Certificates
from tests.servers.postgres import PORT, PostgresServer, bindir

ASKS_FOR_TLS: Final = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")


@asynccontextmanager
async def postgres_front(server: PostgresServer, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port of this host."""
    path = str(server.directory / f".s.PGSQL.{PORT}")

    async def serve(plain: trio.SocketStream) -> None:
        try:
            assert await plain.receive_some(8) == ASKS_FOR_TLS
            await plain.send_all(b"S")
            stream = trio.SSLStream(plain, context, server_side=True)
            async with (
                await trio.open_unix_socket(path) as behind,
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


def has_tls() -> bool:
    """Whether the PostgreSQL that is found was built with it."""
    found = subprocess.run([bindir() / "pg_config", "--configure"], capture_output=True, text=True)
    return "openssl" in found.stdout


@contextmanager
def postgres_with_tls(certificates: Certificates) -> Iterator[str]:
    """A server that takes nobody without TLS and a certificate; its address on this host.

    It has an address of its own: its port is the usual one."""
    address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
    # Short, as a socket's path must be, and open to whoever runs the server.
    directory = Path(tempfile.mkdtemp(prefix="fbpg-", dir="/tmp"))
    directory.chmod(0o755)
    _give(directory)
    certificate, key = _sign(certificates, directory, address)
    options = (
        f"listen_addresses = '{address}'",
        "ssl = on",
        f"ssl_cert_file = '{certificate}'",
        f"ssl_key_file = '{key}'",
        f"ssl_ca_file = '{directory / 'authority.pem'}'",
    )
    server = PostgresServer(directory, options=options)
    try:
        server.initialise()
        # A replacement, so that nothing of the usual lines lets anybody in.
        (directory / "data" / "pg_hba.conf").write_text(
            "local all all trust\nhostssl all all 127.0.0.0/8 trust clientcert=verify-ca\n"
        )
        server.start()
        yield address
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)


def _sign(certificates: Certificates, directory: Path, address: str) -> tuple[Path, Path]:
    certificate, key = directory / "server.crt", directory / "server.key"
    made = certificates.directory
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-keyout", key, "-out", certificate, "-subj", "/CN=server"),
            *("-CA", made / "authority.pem", "-CAkey", made / "authority.key"),
            *("-addext", f"subjectAltName=IP:{address}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    shutil.copy(certificates.authority, directory / "authority.pem")
    key.chmod(0o600)
    _give(certificate, key)
    return certificate, key


def _give(*paths: Path) -> None:
    """To whom root starts a server as."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in paths:
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
