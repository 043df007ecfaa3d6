"""Requests made from a handler's `request` templates.

Every slice is rendered as a whole (actors/config/templates.py); if an item does not fit, its slice
is rendered item by item, and only that item is rejected. Items whose method, address, headers or
surrounding body differ go into different requests, in the order of their first items.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

from actors.config.http import METHODS, HttpHandler, RequestSettings
from actors.config.rendering import OMIT, Rows, Unrenderable, as_text, as_url_part
from actors.config.template_bodies import Frame
from actors.config.templates import ITEM_NAMES, Text, Value, compile_text, compile_value
from actors.model.outcomes import Failure, ItemsFailed
from actors.model.slices import Slice
from daemon.handlers.http.request import (
    Header,
    HeaderMaker,
    HttpContent,
    HttpRequest,
    Place,
    Target,
    bits_of,
    idempotency_key,
    with_query,
)
from daemon.handlers.items import BatchColumns, SliceColumns, UnpackedRuns, unpack_batch

FILL: Final = 8
"""Items are taken for at most this many full requests at once if their requests differ."""
TAKEN_MAX: Final = 16 * 1024
NEARLY_ALL: Final = 0.75
"""If more than this share of the items need a request of their own, requests cannot be filled."""
SINGLES: Final = 32
"""Then this many items are taken at once, so that the other workers have some too."""

_HEADER_VALUE = re.compile(r"([!-~\xa1-\xff]([\t -~\xa1-\xff]*[!-~\xa1-\xff])?)?")
_ORIGIN = re.compile(r"https?://[^/?]*")


class _Kind(NamedTuple):
    """What items must have in common to be sent together."""

    method: bytes
    path: bytes
    headers: tuple[Header, ...]
    frame: Frame


class _Rendered(NamedTuple):
    kinds: Sequence[_Kind]
    items: Sequence[bytes]


class _Entry(NamedTuple):
    """An item on its way into a request."""

    id: str
    place: Place
    text: bytes


class TemplatedRequests:
    def __init__(
        self, settings: HttpHandler, request: RequestSettings, target: Target, query: str
    ) -> None:
        """`query`: a parameter that is added to every address; empty: none."""
        self._target = target
        self._headers = HeaderMaker(settings, target)
        self.head = self._headers.head
        self._batch_items = settings.batch_items
        self._batch_bytes = settings.batch_bytes
        self._item = request.compiled_item()
        self._body = request.compiled_body()
        self._is_json = not isinstance(self._item, Text) and not isinstance(request.body, str)
        self._has_body = request.body is not None or request.method not in ("DELETE", "GET")
        self._address = _Address(settings, request, query)
        self._unpacked = UnpackedRuns()
        self._differs = bool((self._address.names | self._body.names) - {"queue"})
        self._taken = settings.batch_items if self._body.takes_items else 1

    @property
    def taken(self) -> int:
        """How many items a batch should have. It follows the batches that were made."""
        return self._taken

    def _learn(self, items: int, groups: int) -> None:
        if groups > NEARLY_ALL * items:
            self._taken = min(SINGLES, self._batch_items)
        else:
            full = min(groups, FILL) * self._batch_items
            self._taken = max(self._batch_items, min(full, TAKEN_MAX))

    def make(self, parts: Sequence[tuple[int, Slice]]) -> HttpContent:
        slices = dict(parts)
        unpacked = unpack_batch([part for _, part in parts], self._unpacked)
        rejected = _Rejected(
            (parts[one.order][0], one.bits, one.failure) for one in unpacked.rejected
        )
        groups: defaultdict[_Kind, list[_Entry]] = defaultdict(list)
        for places, columns in _slices(unpacked):
            places = [(parts[at][0], index) for at, index in places]
            self._add(groups, rejected, places, columns)
        if self._differs and self._body.takes_items and groups:
            self._learn(sum(map(len, groups.values())), len(groups))
        requests = []
        for kind, entries in groups.items():
            for some in self._portions(entries):
                try:
                    requests.append(self._request(slices, kind, some))
                except (Unrenderable, ValueError) as problem:
                    for entry in some:
                        rejected.add(entry.place, problem)
        return HttpContent(requests, rejected.report())

    def _add(
        self,
        groups: defaultdict[_Kind, list[_Entry]],
        rejected: "_Rejected",
        places: Sequence[Place],
        columns: SliceColumns,
    ) -> None:
        rows = rows_of(columns)
        try:
            kinds, items = self._render(rows)
        except Unrenderable:
            kinds, items, fits = [], [], []
            for at in range(len(rows)):
                try:
                    ((kind,), (item,)) = self._render(rows.one(at))
                except Unrenderable as problem:
                    rejected.add(places[at], problem)
                    continue
                kinds.append(kind)
                items.append(item)
                fits.append(at)
            places = [places[at] for at in fits]
            ids = [columns.ids[at] for at in fits]
        else:
            ids = columns.ids
        entries = map(_Entry, ids, places, items)
        if not self._differs and kinds:
            groups[kinds[0]] += entries
            return
        for kind, entry in zip(kinds, entries, strict=True):
            groups[kind].append(entry)

    def _render(self, rows: Rows) -> _Rendered:
        items = self._item.encoded(rows) if self._body.takes_items else [b""] * len(rows)
        if not self._differs:
            first = rows.one(0)
            (address,), (frame,) = self._address.values(first), self._body.frames(first)
            return _Rendered([_Kind(*address, frame)] * len(rows), items)
        kinds = [
            _Kind(*address, frame)
            for address, frame in zip(
                self._address.values(rows), self._body.frames(rows), strict=True
            )
        ]
        return _Rendered(kinds, items)

    def _portions(self, entries: Sequence[_Entry]) -> Iterator[Sequence[_Entry]]:
        """The items of each request: at most `batch_items`, and about `batch_bytes`."""
        if not self._body.takes_items:
            yield from ([entry] for entry in entries)
            return
        size = first = 0
        for at, entry in enumerate(entries):
            size += len(entry.text)
            if at > first and (at - first == self._batch_items or size > self._batch_bytes):
                yield entries[first:at]
                first, size = at, len(entry.text)
        yield entries[first:]

    def _request(
        self, slices: dict[int, Slice], kind: _Kind, entries: Sequence[_Entry]
    ) -> HttpRequest:
        ids, places, items = zip(*entries, strict=True)
        body = self._headers.compressed(self._body.write(kind.frame, items))
        used = [slices[order] for order, _ in bits_of(places)]
        content_type = b"application/json" if self._is_json else b"text/plain; charset=utf-8"
        key = idempotency_key(ids)
        headers = self._headers.about(key, used, ids, content_type if self._has_body else b"")
        headers += kind.headers
        headers.append((b"Content-Length", b"%d" % len(body)))
        head = self.head.write(headers, kind.method, self._target.form(kind.path))
        return HttpRequest(key, ids, places, head, body)


class _Address:
    """Method, path and headers of an item's request."""

    def __init__(self, settings: HttpHandler, request: RequestSettings, query: str) -> None:
        self._fixed_query = query
        self._method = compile_text("method", request.method or settings.method, ITEM_NAMES)
        url = request.url or settings.url
        path = _ORIGIN.sub("", url, count=1)
        path = path if path.startswith("/") else f"/{path}"
        self._path = compile_text("url", path, ITEM_NAMES, as_url_part)
        self._query = _compiled("query", request.query)
        self._headers = _compiled("headers", request.headers)
        values = [self._method, self._path, *self._query.values(), *self._headers.values()]
        self.names = frozenset[str]().union(*[value.names for value in values])

    def values(self, rows: Rows) -> list[tuple[bytes, bytes, tuple[Header, ...]]]:
        count = len(rows)
        queries = _rows_of_values(self._query, rows)
        headers = _rows_of_values(self._headers, rows)
        return [
            (_method(method), self._target(path, query), tuple(_header(*one) for one in given))
            for method, path, query, given in zip(
                self._method.values(rows),
                self._path.values(rows),
                queries or repeat((), count),
                headers or repeat((), count),
                strict=True,
            )
        ]

    def _target(self, path: str, query: Sequence[tuple[str, str]]) -> bytes:
        if query:
            added = "&".join([f"{quote_plus(name)}={quote_plus(text)}" for name, text in query])
            path = with_query(path, added)
        path = with_query(path, self._fixed_query)
        try:
            return path.encode("ascii")
        except UnicodeEncodeError:
            raise Unrenderable("url: has characters that must be percent-encoded") from None


def _compiled(where: str, templates: dict[str, Any]) -> dict[str, Value]:
    return {name: compile_value(f"{where}.{name}", one) for name, one in templates.items()}


def _rows_of_values(values: dict[str, Value], rows: Rows) -> list[list[tuple[str, str]]]:
    """For each item, names and texts, without those that are null."""
    columns = [value.values(rows) for value in values.values()]
    return [
        [
            (name, as_text(one))
            for name, one in zip(values, row, strict=True)
            if one is not None and one is not OMIT
        ]
        for row in zip(*columns, strict=True)
    ]


def _method(method: str) -> bytes:
    if method not in METHODS:
        raise Unrenderable(f"method: {method!r} is not one of {', '.join(METHODS)}")
    return method.encode()


def _header(name: str, text: str) -> Header:
    if not _HEADER_VALUE.fullmatch(text):
        raise Unrenderable(f"headers.{name}: the value has characters that no header has")
    return name.encode(), text.encode("latin-1")


class _Rejected:
    """Items that no request can be made of."""

    def __init__(self, known: Iterator[tuple[int, int, Failure]]) -> None:
        self._bits: defaultdict[tuple[int, Failure], int] = defaultdict(int)
        for order, bits, failure in known:
            self._bits[order, failure] |= bits

    def add(self, place: Place, problem: Exception) -> None:
        failure = Failure(
            f"unrenderable: {problem}",
            is_permanent=True,
            blames_destination=False,
            failure_reason="business",
        )
        self._bits[place[0], failure] |= 1 << place[1]

    def report(self) -> tuple[ItemsFailed, ...]:
        return tuple(
            ItemsFailed(order, bits, failure) for (order, failure), bits in self._bits.items()
        )


def rows_of(columns: SliceColumns) -> Rows:
    head, count = columns.head, len(columns.ids)
    shared = {
        "queue": head.queue,
        "flow": head.flow,
        "action": head.action,
        "headers": columns.headers,
        "attempt": columns.attempt,
    }
    named: dict[str, Sequence[Any]] = {name: [value] * count for name, value in shared.items()}
    return Rows(columns.payloads, {**named, "id": columns.ids, "key": columns.keys})


def _slices(batch: BatchColumns) -> Iterator[tuple[list[Place], SliceColumns]]:
    at = 0
    for columns in batch.slices:
        count = len(columns.ids)
        yield batch.places[at : at + count], columns
        at += count
