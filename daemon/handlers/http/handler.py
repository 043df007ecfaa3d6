"""The http handler: posts batches to a URL.

`prepare` encodes and compresses; each worker has a sender that keeps a connection open. Opening the
handler only reads certificates; if one is invalid, the daemon does not start. docs/handlers.md says
what is sent and what answers mean.

HTTP/1.1 only; no redirects, no cookies. A proxy is used only if the settings ask for one.
"""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio

from actors.config.handlers import HttpHandler
from actors.model.slices import Slice
from actors.ports.handler import Pace, Prepared
from daemon.errors import ConfigError
from daemon.handlers.http.proxy import proxy_of
from daemon.handlers.http.request import RequestMaker, target_of
from daemon.handlers.http.sender import HttpSender


class HttpDelivery:
    def __init__(self, queue: str, settings: HttpHandler) -> None:
        self._settings = settings
        self._target = target_of(settings.url, proxy_of(queue, settings))
        self._tls = tls_context(queue, settings) if self._target.is_tls else None
        self._requests = RequestMaker(settings, self._target)

    @property
    def destination(self) -> str:
        return self._target.destination

    @property
    def batch_items(self) -> int:
        return self._settings.batch_items

    @property
    def batch_bytes(self) -> int:
        return self._settings.batch_bytes

    @property
    def timeout_s(self) -> float:
        return self._settings.timeout

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        content = self._requests.make(range(len(batch)), batch)
        return Prepared(batch, content, content.rejected)

    def open_sender(self, pace: Pace) -> HttpSender:
        return HttpSender(self._settings, self._target, self._tls, self._requests, pace)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def tls_context(queue: str, settings: HttpHandler) -> ssl.SSLContext:
    """The TLS settings: authorities and client certificate. Raises ConfigError if a file cannot be
    used."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not settings.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    where = f"queues.{queue}.handler"
    ca_file, cert_file, key_file = settings.ca_file, settings.cert_file, settings.key_file
    if ca_file is not None:
        trust(context, f"{where}.ca_file", ca_file)
    if key_file is not None:
        _readable(f"{where}.key_file", key_file)
    if cert_file is not None:
        _readable(f"{where}.cert_file", cert_file)
        with _usable(f"{where}.cert_file", cert_file):
            # Without this password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(cert_file, key_file, password=lambda: "")
    return context


def trust(context: ssl.SSLContext, key: str, ca_file: Path) -> None:
    """Adds the authorities in a file. Raises ConfigError if the file cannot be used."""
    _readable(key, ca_file)
    with _usable(key, ca_file):
        context.load_verify_locations(ca_file)


def _readable(key: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error


@contextmanager
def _usable(key: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
        raise ConfigError(f"{key}: {path} cannot be used: {reason}") from error
