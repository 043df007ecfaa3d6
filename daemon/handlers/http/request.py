"""Makes the HTTP requests of a batch: bodies, compressed if configured, and headers.

Without templates a batch is one request. With them (daemon/handlers/http/templated.py) it may be
several. Pure: the same batch gives the same requests, so a destination can recognize a repeated
request by its idempotency key.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import version
from typing import Final, Protocol
from urllib.parse import urlsplit

import cramjam
import h11

from actors.config.http import HttpHandler, header_texts
from actors.model.outcomes import Failure, ItemsFailed
from actors.model.slices import Slice
from daemon.handlers.http.proxy import Proxy
from daemon.handlers.items import encode_batch

Header = tuple[bytes, bytes]

IDS_BYTES_MAX: Final = 6 * 1024
"""If the ids of raw payloads need more bytes, they are not sent: many servers refuse requests whose
headers have more than 8 KiB in total."""
GZIP_LEVEL: Final = 1
"""JSON at 114 MB/s to 42 % of its size; level 6: 20 MB/s to 39 %."""

_PASSED_ON: Final = {
    "correlation_id": b"X-Correlation-Id",
    "correlation-id": b"X-Correlation-Id",
    "x-correlation-id": b"X-Correlation-Id",
    "traceparent": b"traceparent",
}
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_CONTENT_TYPES: Final = {"ndjson": b"application/x-ndjson", "json": b"application/json"}
_TARGET = re.compile(rb"(http://[!-.0-~]+)?/[!-~]*")
_LINES = re.compile(
    rb"(?:[-!#$%&'*+.^_`|~0-9a-zA-Z]+: "
    rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?\r\n)*"
)


class RequestHead:
    """The part of the head that all requests to one destination share.

    h11 checks and writes these headers once. The headers of a single request are added to that and
    checked as a whole: 2 µs for seven headers. h11 took 23 µs more, since it checks every header
    separately, and the shared ones again each time.

    The bytes are those that h11 would write, and everything that h11 would refuse is refused
    (tests/daemon/handlers/http/test_head.py). For example, a value with a line break, which would
    begin another header or request, is refused.
    """

    __slots__ = ("_lines", "_method", "_path", "shared")

    def __init__(self, method: str, path: bytes, headers: Sequence[Header]) -> None:
        """`headers` are the shared ones."""
        self.shared = h11.Request(method=method, target=path, headers=list(headers))
        """The request as h11 must know it to read the answer."""
        self._method = method.encode()
        self._path = path
        start = h11.Connection(h11.CLIENT).send(self.shared)
        self._lines = start.removesuffix(b"\r\n").partition(b"\r\n")[2]

    def write(
        self, headers: Sequence[Header], method: bytes | None = None, path: bytes | None = None
    ) -> bytes:
        """The head of a request, with its own headers, method and path, without the empty line at
        its end. Raises ValueError if one of them is invalid."""
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        if not _LINES.fullmatch(lines) or lines.count(b"\n") != len(headers):
            raise ValueError("a header has a line break in it, or characters that no header has")
        if path is not None and not _TARGET.fullmatch(path):
            raise ValueError("the address has characters that must be percent-encoded")
        return b"%b %b HTTP/1.1\r\n%b%b" % (
            method or self._method,
            path or self._path,
            self._lines,
            lines,
        )


def with_query(path: str, added: str) -> str:
    """The path with more parameters."""
    return f"{path}{'&' if '?' in path else '?'}{added}" if added else path


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    is_tls: bool
    path: bytes
    """Includes the query."""
    proxy: Proxy | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def destination(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.address}"

    @property
    def host_header(self) -> bytes:
        is_usual = self.port == (443 if self.is_tls else 80)
        return (self.address.rpartition(":")[0] if is_usual else self.address).encode()

    @property
    def asked_proxy(self) -> Proxy | None:
        """The proxy that requests are sent to. None: they are sent to the destination, through a
        tunnel of the proxy if there is one."""
        return None if self.is_tls else self.proxy

    @property
    def answering(self) -> str:
        """Who has given an answer, for messages."""
        proxy = self.asked_proxy
        return self.destination if proxy is None else f"{self.destination} through {proxy.name}"

    def form(self, path: bytes) -> bytes:
        """A path as a request names it: a proxy that is sent requests needs the whole address."""
        return path if self.asked_proxy is None else b"http://" + self.host_header + path


def target_of(url: str, proxy: Proxy | None = None) -> Target:
    """The target of a URL that was checked when the configuration was read."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = parts.port or (443 if is_tls else 80)
    return Target(parts.hostname or "", port, is_tls, path.encode(), proxy)


Place = tuple[int, int]
"""An item: its slice's number in the batch, and its index in its run."""


@dataclass(frozen=True, slots=True, eq=False)
class HttpRequest:
    """A request for some items of a batch."""

    key: str
    """Its idempotency key."""
    ids: Sequence[str]
    places: Sequence[Place]
    head: bytes
    """Without the empty line at its end: headers may be added."""
    body: bytes

    def failed(self, failure: Failure) -> list[ItemsFailed]:
        """The failure of all its items."""
        return [ItemsFailed(order, bits, failure) for order, bits in bits_of(self.places)]


@dataclass(frozen=True, slots=True, eq=False)
class HttpContent:
    requests: Sequence[HttpRequest]
    rejected: tuple[ItemsFailed, ...] = ()
    """The items that no request can be made of."""


class RequestMaker(Protocol):
    """Makes the requests of batches according to a handler's settings."""

    head: RequestHead

    def make(self, parts: Sequence[tuple[int, Slice]]) -> HttpContent:
        """`parts`: slices of a batch, with their numbers in it."""


def halves(maker: RequestMaker, batch: Sequence[Slice], request: HttpRequest) -> list[HttpRequest]:
    """The items of a request in two."""
    middle = len(request.places) // 2
    found: list[HttpRequest] = []
    for places in (request.places[:middle], request.places[middle:]):
        parts = [(order, replace(batch[order], bits=bits)) for order, bits in bits_of(places)]
        found += maker.make(parts).requests
    return found


def bits_of(places: Iterable[Place]) -> list[tuple[int, int]]:
    """The items of each slice as bits."""
    found: dict[int, int] = {}
    for order, index in places:
        found[order] = found.get(order, 0) | 1 << index
    return list(found.items())


class HeaderMaker:
    """The headers of requests: those that all share, and those of a single request."""

    def __init__(self, settings: HttpHandler, target: Target) -> None:
        configured = header_texts(settings.headers)
        own = {} if settings.request is None else settings.request.headers
        given = {name.lower() for name in (*configured, *own)}
        usual = {"Host": target.host_header.decode(), "Accept-Encoding": "identity"}
        usual["User-Agent"] = f"forebay/{version('forebayd')}"
        chosen = {name: value for name, value in usual.items() if name.lower() not in given}
        self._given = {name.encode() for name in given}
        fixed: list[Header] = [
            (name.encode(), value.encode("latin-1"))
            for name, value in (chosen | configured).items()
        ]
        self._compression = settings.compression
        if self._compression != "none":
            fixed.append((b"Content-Encoding", self._compression.encode()))
        if target.asked_proxy is not None:
            fixed += target.asked_proxy.headers
        self.head = RequestHead(settings.method, target.form(target.path), fixed)

    def about(
        self, key: str, slices: Sequence[Slice], ids: Sequence[str], kind: bytes
    ) -> list[Header]:
        """`kind`: the content type, unless the settings give one."""
        headers: list[Header] = [
            (b"Idempotency-Key", key.encode()),
            (b"X-Forebay-Queue", slices[0].run.head.queue.encode()),
            (b"X-Forebay-Items", b"%d" % len(ids)),
            (b"X-Forebay-Attempt", b"%d" % max(part.attempt for part in slices)),
        ]
        if kind and b"content-type" not in self._given:
            headers.append((b"Content-Type", kind))
        if len(ids) == 1:
            headers.append((b"X-Forebay-Item-Id", ids[0].encode()))
        headers += [one for one in passed_on(slices) if one[0].lower() not in self._given]
        return headers

    def compressed(self, body: bytes) -> bytes:
        return body if self._compression == "none" else compress(body, self._compression)


class PlainRequests:
    """One request per batch, whose body is the items in one of the usual encodings."""

    def __init__(self, settings: HttpHandler, target: Target, query: str) -> None:
        """`query`: a parameter that is added to the address; empty: none."""
        self._encoding = settings.encoding
        path = with_query(target.path.decode(), query).encode()
        self._headers = HeaderMaker(settings, replace(target, path=path))
        self.head = self._headers.head

    def make(self, parts: Sequence[tuple[int, Slice]]) -> HttpContent:
        orders = [order for order, _ in parts]
        slices = [part for _, part in parts]
        encoded = encode_batch(slices, self._encoding)
        places, rejected = encoded.places, encoded.rejected
        if orders != list(range(len(orders))):
            places = [(orders[at], index) for at, index in places]
            rejected = tuple(replace(one, order=orders[one.order]) for one in rejected)
        if not encoded.ids:
            return HttpContent((), rejected)
        body = self._headers.compressed(encoded.body)
        key = idempotency_key(encoded.ids)
        kind = self._content_type(len(encoded.ids))
        headers = self._headers.about(key, slices, encoded.ids, kind)
        if self._encoding == "raw" and len(encoded.ids) > 1:
            text = ",".join(encoded.ids).encode()
            if len(text) <= IDS_BYTES_MAX:
                headers.append((b"X-Forebay-Item-Ids", text))
        headers.append((b"Content-Length", b"%d" % len(body)))
        request = HttpRequest(key, encoded.ids, places, self.head.write(headers), body)
        return HttpContent((request,), rejected)

    def _content_type(self, items: int) -> bytes:
        if self._encoding == "raw":
            return b"application/octet-stream" if items == 1 else b"text/plain"
        return _CONTENT_TYPES[self._encoding]


def compress(body: bytes, compression: str) -> bytes:
    """Snappy uses the raw format, like Prometheus' remote write."""
    if compression == "gzip":
        return zlib.compress(body, GZIP_LEVEL, wbits=31)
    return bytes(cramjam.snappy.compress_raw(body))


def idempotency_key(ids: Sequence[str]) -> str:
    """The id of a single item; a hash of the ids of several."""
    if len(ids) == 1:
        return ids[0]
    return blake2b("\n".join(ids).encode(), digest_size=16).hexdigest()


def passed_on(slices: Sequence[Slice]) -> list[Header]:
    """The run headers that all items of the batch share."""
    packed = {part.run.head.packed_headers for part in slices}
    if not any(packed):
        return []
    sets = [
        {_PASSED_ON[name]: value for name, value in headers.items() if name in _PASSED_ON}
        for headers in (
            {name.lower(): value for name, value in part.run.head.headers().items()}
            for part in {part.run.head.packed_headers: part for part in slices}.values()
        )
    ]
    first, *others = sets
    return [
        (name, value.encode())
        for name, value in first.items()
        if all(other.get(name) == value for other in others) and _HEADER_VALUE.fullmatch(value)
    ]
