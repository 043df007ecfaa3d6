"""The http handler: sends batches to a URL, and shows what it would send.

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

from actors.config.http import HttpHandler, header_texts
from actors.model.masking import MASK, is_secret, masked_address
from actors.model.outcomes import Failure
from actors.model.secret_values import SECRET_VALUES
from actors.model.slices import Slice
from actors.ports.handler import NoPace, Pace, Prepared, Trial, TriedItem, TriedRequest
from daemon.errors import ConfigError
from daemon.handlers.http.answer import Answer, Understood, text_of
from daemon.handlers.http.auth import open_auth
from daemon.handlers.http.proxy import proxy_of
from daemon.handlers.http.request import (
    HttpContent,
    HttpRequest,
    PlainRequests,
    RequestMaker,
    Target,
    target_of,
)
from daemon.handlers.http.sender import HttpSender, Turns
from daemon.handlers.http.templated import TemplatedRequests


class HttpDelivery:
    def __init__(self, queue: str, settings: HttpHandler) -> None:
        self._settings = settings
        self._target = target_of(settings.url, proxy_of(queue, settings, settings.url))
        self._tls = tls_context(queue, settings) if self._target.is_tls else None
        try:
            header_texts(settings.headers)
        except ValueError as problem:
            raise ConfigError(f"queues.{queue}.handler.headers: {problem}") from problem
        self.auth = open_auth(queue, settings, self._tls)
        """Shared by all senders."""
        self._requests: RequestMaker
        self._templated: TemplatedRequests | None = None
        if settings.request is None:
            self._requests = PlainRequests(settings, self._target, self.auth.query)
        else:
            self._templated = TemplatedRequests(
                settings, settings.request, self._target, self.auth.query
            )
            self._requests = self._templated

    @property
    def destination(self) -> str:
        return self._target.destination

    @property
    def batch_items(self) -> int:
        templated = self._templated
        return self._settings.batch_items if templated is None else templated.taken

    @property
    def batch_bytes(self) -> int:
        return self._settings.batch_bytes

    @property
    def timeout_s(self) -> float:
        """Twice: the last request of a batch may begin when the time of the first is over."""
        return 2 * self._settings.timeout

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        content = self._requests.make(list(enumerate(batch)))
        return Prepared(batch, content, content.rejected)

    def open_sender(self, pace: Pace) -> HttpSender:
        return HttpSender(self._settings, self._target, self._tls, self._requests, self.auth, pace)

    async def try_out(self, batch: Sequence[Slice], *, is_sent: bool) -> Trial:
        sender = self.open_sender(NoPace())
        try:
            content = self._requests.make(list(enumerate(batch)))
            hidden = () if self._settings.auth is None else self._settings.auth.own_headers
            trying = Trying(sender, self._target, hidden)
            return await trying.run(content, is_sent=is_sent)
        finally:
            await sender.aclose()

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


# Shows the requests of a batch, and what the destination answers if they are sent.


class Trying:
    def __init__(self, sender: HttpSender, target: Target, hidden: tuple[str, ...]) -> None:
        """`hidden`: the names of headers that are added when a request is sent, and are secret."""
        self._sender = sender
        self._target = target
        self._hidden = hidden

    async def run(self, content: HttpContent, *, is_sent: bool) -> Trial:
        requests: list[TriedRequest] = []
        items: list[TriedItem] = []
        for request in content.requests:
            if is_sent:
                answer = await self._sender.ask(request, Turns(NoPace()))
                requests.append(self._shown(request, answer))
                items += _outcomes(request, self._sender.judge(request, answer))
            else:
                requests.append(self._shown(request, None))
                items += [TriedItem(item_id, "ready") for item_id in request.ids]
        return Trial(tuple(requests), (*items, *_rejected(content)))

    def _shown(self, request: HttpRequest, answer: Answer | Failure | None) -> TriedRequest:
        line, *lines = request.head.decode("latin-1").splitlines()
        method, path, _ = line.split(" ")
        url = path if path.startswith("http") else f"{self._target.destination}{path}"
        headers = dict(one.split(": ", 1) for one in lines)
        shown = {name: _masked(name, value) for name, value in headers.items()}
        return TriedRequest(
            method,
            SECRET_VALUES.masked(masked_address(url)),
            shown | dict.fromkeys(self._hidden, MASK),
            request.body,
            tuple(request.ids),
            None if answer is None else answer.status,
            text_of(answer) if isinstance(answer, Answer) else None,
        )


def _outcomes(request: HttpRequest, found: Understood | Failure) -> list[TriedItem]:
    if isinstance(found, Failure):
        return [_failed(item_id, found) for item_id in request.ids]
    return [
        _failed(item_id, found.failures[at])
        if at in found.failures
        else TriedItem(item_id, "delivered")
        for at, item_id in enumerate(request.ids)
    ]


def _failed(item_id: str, failure: Failure) -> TriedItem:
    return TriedItem(item_id, "refused" if failure.is_permanent else "retry", failure.text)


def _rejected(content: HttpContent) -> list[TriedItem]:
    return [
        TriedItem(f"{one.order}-{one.bits:b}", "refused", one.failure.text)
        for one in content.rejected
    ]


def _masked(header: str, value: str) -> str:
    hides = is_secret(header.lower().replace("-", "_"))
    return MASK if hides else SECRET_VALUES.masked(value)
