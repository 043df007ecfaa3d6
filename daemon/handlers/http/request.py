"""Makes the HTTP request of a batch: its body, compressed if configured, and its headers.

Pure: the same batch gives the same request, so a destination can recognize a repeated batch by its
idempotency key.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

import cramjam
import h11

from actors.config.handlers import HttpHandler
from actors.model.outcomes import ItemsFailed
from actors.model.slices import Slice
from daemon.handlers.http.proxy import Proxy
from daemon.handlers.items import Encoded, encode_batch

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

    __slots__ = ("_start", "shared")

    def __init__(self, method: str, path: bytes, headers: Sequence[Header]) -> None:
        """`headers` are the shared ones."""
        self.shared = h11.Request(method=method, target=path, headers=list(headers))
        """The request as h11 must know it to read the answer."""
        self._start = h11.Connection(h11.CLIENT).send(self.shared).removesuffix(b"\r\n")

    def write(self, headers: Sequence[Header]) -> bytes:
        """The whole head of a request, with its own headers. Raises ValueError if one is
        invalid."""
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        if not _LINES.fullmatch(lines) or lines.count(b"\n") != len(headers):
            raise ValueError("a header has a line break in it, or characters that no header has")
        return b"%b%b\r\n" % (self._start, lines)


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


@dataclass(frozen=True, slots=True, eq=False)
class HttpContent:
    """A request for some slices of a batch."""

    orders: Sequence[int]
    """The positions of these slices in the batch."""
    slices: Sequence[Slice]
    encoded: Encoded
    """The batch, without its body."""
    request: bytes
    """Head and body, as they are sent."""

    @property
    def rejected(self) -> tuple[ItemsFailed, ...]:
        return self.encoded.rejected


class RequestMaker:
    """Makes requests from batches according to a handler's settings."""

    def __init__(self, settings: HttpHandler, target: Target) -> None:
        self._encoding = settings.encoding
        self._compression = settings.compression
        given = {name.lower() for name in settings.headers}
        usual = {"Host": target.host_header.decode(), "Accept-Encoding": "identity"}
        usual["User-Agent"] = f"forebay/{version('forebayd')}"
        chosen = {name: value for name, value in usual.items() if name.lower() not in given}
        self._given = {name.encode() for name in given}
        fixed: list[Header] = [
            (name.encode(), value.encode("latin-1"))
            for name, value in (chosen | settings.headers).items()
        ]
        if self._compression != "none":
            fixed.append((b"Content-Encoding", self._compression.encode()))
        if target.asked_proxy is not None:
            fixed += target.asked_proxy.headers
        self.head = RequestHead(settings.method, target.form(target.path), fixed)

    def make(self, orders: Sequence[int], slices: Sequence[Slice]) -> HttpContent:
        encoded = encode_batch(slices, self._encoding)
        body = encoded.body
        if self._compression != "none":
            body = compress(body, self._compression)
        headers = self._about(slices, encoded)
        headers.append((b"Content-Length", b"%d" % len(body)))
        request = self.head.write(headers) + body
        described = Encoded(b"", encoded.ids, encoded.places, encoded.rejected)
        return HttpContent(orders, slices, described, request)

    def _about(self, slices: Sequence[Slice], encoded: Encoded) -> list[Header]:
        ids = encoded.ids
        headers: list[Header] = [
            (b"Idempotency-Key", idempotency_key(ids).encode()),
            (b"X-Forebay-Queue", slices[0].run.head.queue.encode()),
            (b"X-Forebay-Items", b"%d" % len(ids)),
            (b"X-Forebay-Attempt", b"%d" % max(part.attempt for part in slices)),
        ]
        if b"content-type" not in self._given:
            headers.append((b"Content-Type", self._content_type(len(ids))))
        if len(ids) == 1:
            headers.append((b"X-Forebay-Item-Id", ids[0].encode()))
        elif self._encoding == "raw":
            text = ",".join(ids).encode()
            if len(text) <= IDS_BYTES_MAX:
                headers.append((b"X-Forebay-Item-Ids", text))
        headers += [one for one in passed_on(slices) if one[0].lower() not in self._given]
        return headers

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


def halves(content: HttpContent) -> list[tuple[list[int], list[Slice]]]:
    """The slices of a too large request in two parts, without rejected ones."""
    left_out = {failed.order for failed in content.rejected}
    rest = len(content.encoded.ids) // 2
    first: tuple[list[int], list[Slice]] = ([], [])
    second: tuple[list[int], list[Slice]] = ([], [])
    for at, (order, part) in enumerate(zip(content.orders, content.slices, strict=True)):
        if at in left_out:
            continue
        head, tail = part.split(rest) if rest else (None, part)
        for half, piece in ((first, head), (second, tail)):
            if piece is not None:
                half[0].append(order)
                half[1].append(piece)
        rest -= head.items if head is not None else 0
    return [first, second]
