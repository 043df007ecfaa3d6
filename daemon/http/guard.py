"""The guard around the application: bounds the cost of requests, and refuses cross-site requests.

It checks every request first: its Host and Origin, the rate of its client, the size and the speed
of its body. It adds the security headers to every answer. Refusals are problems like any other.
Plain ASGI: nothing is buffered. The token of a request that changes something is checked here,
before its body is read; the routes check it too, but only after they have parsed the body.

It works around two traps of the server. An unread body would hold its connection forever, so the
rest of the body is discarded before an answer ends. The server would log an exception in its own
format, so no exception reaches it.

What it cannot do: prevent clients from opening connections; server.py counts those.
"""

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
import trio

from actors.config.settings import HttpSettings
from actors.ingest.large_bodies import VALUES_MAX, LargeBodies, has_too_many_values
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.masking import masked_query
from actors.model.units import format_size
from daemon.http.access import Access
from daemon.http.problems import Problem, problem_of, render

log = structlog.get_logger()

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

CLIENTS_MAX: Final = 4096
"""How many clients' rates are remembered; the least recent client is forgotten."""
BURST_S: Final = 2.0
PACE_BYTES_S: Final = 1024
"""A body that arrives more slowly than this is an attack."""
DISCARD_S: Final = 2.0
"""For a refused client to finish sending: one that is cut off would not read why."""

SECURITY_HEADERS: Final[Mapping[bytes, bytes]] = {
    b"content-security-policy": b"default-src 'self'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'; object-src 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
    b"cache-control": b"no-store",
}
"""Of every answer, unless its route says otherwise."""

QUERY_MAX: Final = 500
"""Characters of a line in the log."""
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LEASING: Final = "/api/queue-items/next"
"""A GET that changes something: it takes items."""
ADDING: Final = re.compile(r"/api/queue-items(/add|/[^/]+/(ack|nack|extend))?|.*/items")
STREAMED: Final = re.compile(r"/api/v2/queues/[^/]+/items")
"""A POST to here may be of any length: it is read as it comes."""


def changes_something(method: str, path: str) -> bool:
    return method not in SAFE_METHODS or path == LEASING


def is_worth_a_line(method: str, path: str) -> bool:
    """Whether the request is logged: operators' actions are, the traffic of items is not."""
    return method not in SAFE_METHODS and not (method == "POST" and ADDING.fullmatch(path))


def bytes_max(method: str, path: str, settings: HttpSettings) -> int | None:
    if method == "POST" and STREAMED.fullmatch(path):
        return None
    return settings.request_bytes_max


def host_of(text: str) -> str:
    """The name in a Host header, without its port."""
    return (urlsplit(f"//{text}").hostname or "").lower()


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def own_hosts(settings: HttpSettings) -> frozenset[str]:
    listen = host_of(settings.listen or "")
    return frozenset({listen, *(name.lower() for name in settings.hosts)})


def is_own_origin(origin: str, host: str) -> bool:
    """Whether the origin is a page of this server, requested under the same name."""
    parts = urlsplit(origin)
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


@dataclass(slots=True)
class Bucket:
    tokens: float
    at: float


class Rates:
    """One token bucket per client."""

    def __init__(self, per_second: float, clients_max: int = CLIENTS_MAX) -> None:
        self._per_second = per_second
        self._clients_max = clients_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """How many seconds the client must wait; 0 if it may proceed."""
        if not self._per_second:
            return 0.0
        full = self._per_second * BURST_S
        bucket = self._buckets.pop(client, None) or Bucket(full, now)
        self._buckets[client] = bucket
        if len(self._buckets) > self._clients_max:
            self._buckets.popitem(last=False)
        bucket.tokens = min(full, bucket.tokens + (now - bucket.at) * self._per_second)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self._per_second
        bucket.tokens -= 1
        return 0.0


class Body:
    """A request's body as it arrives: bounded in size and in time.

    Only the time that the client takes counts, not the time between reads."""

    def __init__(
        self,
        receive: Receive,
        size_max: int | None,
        patience_s: float,
        large_bodies: LargeBodies,
    ) -> None:
        """`size_max` is None for a body that is read as a stream."""
        self._receive = receive
        self._size_max = size_max
        self._large_bodies = large_bodies
        self._patience_s = patience_s
        self._left_s = patience_s
        self._bytes = 0
        self.is_over = False

    async def receive(self) -> Message:
        if self.is_over:
            return await self._receive()
        began = trio.current_time()
        try:
            with trio.fail_at(began + self._left_s):
                message = await self._receive()
        except trio.TooSlowError:
            text = f"the request did not come within {self._patience_s:g} s, or too slowly"
            raise Problem(408, text, headers={"Connection": "close"}) from None
        finally:
            self._left_s -= trio.current_time() - began
        self._note(message)
        if self._size_max is not None and self._bytes > self._size_max:
            raise too_large(self._size_max)
        return message

    async def receive_whole(self) -> Message:
        """The whole body, for a route that parses it at once."""
        parts: list[bytes] = []
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
            if self.is_over:
                break
        body = b"".join(parts)
        await self._large_bodies.wait(len(body))
        if has_too_many_values(body):
            raise Problem(413, f"a request has at most {VALUES_MAX} JSON values")
        return {"type": "http.request", "body": body, "more_body": False}

    async def discard(self) -> None:
        """Discards the rest of the body, within a time limit."""
        with trio.move_on_after(DISCARD_S):
            while not self.is_over:
                self._note(await self._receive())

    async def swallow(self) -> None:
        """Discards what still arrives, until cancelled."""
        while True:
            await self._receive()

    def _note(self, message: Message) -> None:
        size = len(message.get("body", b""))
        self._bytes += size
        # A body that is fast at first must not be slow for hours later.
        self._left_s = min(self._left_s + size / PACE_BYTES_S, self._patience_s)
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.is_over = True


def too_large(size_max: int) -> Problem:
    return Problem(413, f"a request has at most {format_size(size_max)}")


class Guard:
    """Wraps the application. If no token is needed, the Host header must name this server."""

    def __init__(
        self, app: App, settings: HttpSettings, access: Access, large_bodies: LargeBodies
    ) -> None:
        self._app = app
        self._large_bodies = large_bodies
        self._settings = settings
        self._access = access
        self._hosts = own_hosts(settings)
        self._rates = Rates(settings.rate_limit)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1003})
            return
        size_max = bytes_max(scope["method"], scope["path"], self._settings)
        body = Body(receive, size_max, self._settings.timeout, self._large_bodies)
        answer = Answer(scope, body, send)
        scope.setdefault("state", {})
        try:
            self._check(scope, size_max)
            is_streamed = size_max is None
            take = body.receive if is_streamed else body.receive_whole
            await self._app(scope, take, answer.send)
        except Problem as problem:
            await answer.refuse(problem)
        except Exception as problem:
            about = {"method": scope["method"], "path": scope["path"]}
            await answer.refuse(problem_of(INTERNAL_ERRORS.note(problem, "HTTP", **about)))

    def _check(self, scope: Mapping[str, Any], size_max: int | None) -> None:
        headers = single(scope["headers"])
        client = (scope.get("client") or ("unknown",))[0]
        wait_s = self._rates.take(client, trio.current_time())
        if wait_s:
            text = f"at most {self._settings.rate_limit:g} requests a second"
            raise Problem(429, text, retry_after_s=wait_s)
        host = headers.get(b"host", "")
        name = host_of(host) if is_plain(host) else ""
        if self._access.is_open and not is_loopback(name) and name not in self._hosts:
            raise Problem(421, f"this server is not {name[:100] or 'nameless'}: see http.hosts")
        if changes_something(scope["method"], scope["path"]):
            check_origin(headers, host)
            scope["state"]["who"] = self._access.admin(headers.get(b"authorization"))
        length = headers.get(b"content-length", "")
        if size_max is not None and length.isdecimal() and int(length) > size_max:
            raise too_large(size_max)


def is_plain(host: str) -> bool:
    """Whether a Host header is a name or address, and perhaps a port."""
    return re.fullmatch(r"[A-Za-z0-9.\-_]+(:\d*)?|\[[0-9A-Fa-f:.]+\](:\d*)?", host) is not None


def single(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Each header once; repeated headers are joined, which makes them invalid."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        text = value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def check_origin(headers: Mapping[bytes, str], host: str) -> None:
    """Refuses requests that a browser sends for a page of another site."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if origin is not None and not is_own_origin(origin, host):
        raise Problem(403, "this request comes from a page of another site", "cross-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Problem(403, "this request comes from a page of another site", "cross-site")


class Answer:
    """An answer on its way out."""

    def __init__(self, scope: Mapping[str, Any], body: Body, send: Send) -> None:
        self._scope = scope
        self._body = body
        self._send = send
        self._status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._log()
            message["headers"] = with_security(message.get("headers", ()))
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        if not is_last or self._body.is_over:
            await self._send(message)
            return
        await self._body.discard()
        async with trio.open_nursery() as nursery:
            # Before it ends, the server passes on what still arrives, and would wait for a reader.
            nursery.start_soon(self._body.swallow)
            await self._send(message)
            nursery.cancel_scope.cancel()

    async def refuse(self, problem: Problem) -> None:
        """Answers with the problem, unless an answer has begun."""
        if self._status is not None:
            return
        response = render(problem, self._scope["path"])
        await response(dict(self._scope), self._body.receive, self.send)

    def _log(self) -> None:
        """Logs before the answer, so that a client that has it finds the line in the log."""
        who = self._scope["state"].get("who")
        method, path = self._scope["method"], self._scope["path"]
        if who is not None and is_worth_a_line(method, path):
            query = masked_query(self._scope.get("query_string", b"").decode("latin-1"))
            more = {"query": query[:QUERY_MAX]} if query else {}
            log.info(
                "http.admin",
                who=who.name,
                method=method,
                path=path,
                **more,
                status=self._status,
            )


def with_security(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    own = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    names = {name for name, _ in own}
    return own + [pair for pair in SECURITY_HEADERS.items() if pair[0] not in names]
