"""What handlers share: unpacks batches, encodes them, and turns verdicts into a report."""

import base64
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, Final, Literal, TypeVar

import msgspec

from actors.model.outcomes import Failure, ItemResult, ItemsFailed, Report
from actors.model.secret_values import SECRET_VALUES
from actors.model.slices import LentRun, Slice, indexes, lowest_bit
from actors.ports.handler import DeliveryFailed, Prepared
from forebay.errors import BadRun
from forebay.head import RunHead
from forebay.item import Item
from forebay.run import Run

RUNS_MAX: Final = 32
BYTES_MAX: Final = 64 * 1024 * 1024


class UnpackedRuns:
    """A cache of unpacked runs, so that small batches unpack a run only once.

    A queue with batches of 1 item and runs of 4,096 would decompress each run 4,096 times: 0.6 ms
    per item. Bounded in runs and in bytes; the oldest is evicted first, and unpacked again if
    needed. May be used from several threads.
    """

    def __init__(self, runs_max: int = RUNS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._runs_max = runs_max
        self._bytes_max = bytes_max
        # LentRun is compared by identity, and the key keeps it alive, so its id is not reused.
        self._runs: OrderedDict[LentRun, Run] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def run_of(self, part: Slice) -> Run:
        """The run of a slice. Kept while later items of the run may still be needed."""
        lent = part.run
        is_last = part.bits.bit_length() >= lent.head.count
        with self._lock:
            known = self._runs.get(lent)
            if known is None:
                known = Run(lent.head, lent.data)
                if not is_last:
                    self._remember(lent, known)
            elif is_last:
                self._forget(lent)
        return known

    def _remember(self, lent: LentRun, run: Run) -> None:
        self._runs[lent] = run
        self._bytes += lent.head.raw_bytes
        while len(self._runs) > self._runs_max or self._bytes > self._bytes_max:
            self._forget(next(iter(self._runs)))

    def _forget(self, lent: LentRun) -> None:
        del self._runs[lent]
        self._bytes -= lent.head.raw_bytes


# Turns the verdicts on single items into the report on a batch.

Verdict = Failure | str | None
"""None: delivered. A text: delivered, with this result."""


def report(
    prepared: Prepared, places: Sequence[tuple[int, int]], verdicts: Sequence[Verdict]
) -> Report:
    """The report on a batch, from a verdict per item that was sent."""
    failed: dict[tuple[int, Failure], int] = {}
    results: dict[tuple[int, str], int] = {}
    for (order, index), verdict in zip(places, verdicts, strict=True):
        if isinstance(verdict, str):
            results[order, verdict] = results.get((order, verdict), 0) | 1 << index
        elif verdict is not None:
            failed[order, verdict] = failed.get((order, verdict), 0) | 1 << index
    return Report(
        prepared.rejected
        + tuple(ItemsFailed(order, bits, failure) for (order, failure), bits in failed.items()),
        results=tuple(
            ItemResult(order, bits, SECRET_VALUES.masked(text))
            for (order, text), bits in results.items()
        ),
    )


def all_failed(prepared: Prepared, places: Sequence[tuple[int, int]], failure: Failure) -> Report:
    """All items that were sent failed. Items rejected earlier keep their own reason."""
    if not prepared.rejected:
        raise DeliveryFailed(failure)
    return report(prepared, places, [failure] * len(places))


@dataclass(frozen=True, slots=True, eq=False)
class SliceColumns:
    """The items of a slice: shared fields, and columns with a value per item."""

    head: RunHead
    headers: dict[str, str]
    attempt: int
    ids: list[str]
    keys: list[str | None]
    payloads: list[bytes]

    def items(self) -> list[Item]:
        head = self.head
        return [
            Item(
                id=item_id,
                queue=head.queue,
                key=key,
                payload=payload,
                priority=head.priority,
                flow=head.flow,
                action=head.action,
                attempt=self.attempt,
                headers=self.headers,
                enqueued_ms=head.enqueued_ms,
            )
            for item_id, key, payload in zip(self.ids, self.keys, self.payloads, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class BatchColumns:
    """The slices that could be unpacked."""

    slices: list[SliceColumns]
    places: list[tuple[int, int]]
    """For each item: its slice's number in the batch, and its index in its run."""
    rejected: tuple[ItemsFailed, ...] = ()
    """The items that could not be unpacked."""

    def items(self) -> list[Item]:
        return [item for part in self.slices for item in part.items()]


def unpack_batch(batch: Sequence[Slice], unpacked: UnpackedRuns) -> BatchColumns:
    """The items of a batch, in order. An invalid run is reported, not raised."""
    slices: list[SliceColumns] = []
    places: list[tuple[int, int]] = []
    rejected: list[ItemsFailed] = []
    for order, part in enumerate(batch):
        try:
            slices.append(_unpack(part, unpacked))
        except (BadRun, IndexError) as problem:
            failure = Failure(
                f"cannot be unpacked: {problem}", is_permanent=True, blames_destination=False
            )
            rejected.append(ItemsFailed(order, part.bits, failure))
            continue
        places += zip(repeat(order), indexes(part.bits))
    return BatchColumns(slices, places, tuple(rejected))


def _unpack(part: Slice, unpacked: UnpackedRuns) -> SliceColumns:
    run = unpacked.run_of(part)
    first, last = lowest_bit(part.bits), part.bits.bit_length()
    ids = run.item_ids(first, last)
    keys = [key.decode(errors="replace") or None for key in run.keys(first, last)]
    payloads = run.payloads(first, last)
    if part.items < last - first:
        chosen = [index - first for index in indexes(part.bits)]
        ids = [ids[at] for at in chosen]
        keys = [keys[at] for at in chosen]
        payloads = [payloads[at] for at in chosen]
    return SliceColumns(run.head, run.head.headers(), part.attempt, ids, keys, payloads)


# Encodes batches for the http, command and file handlers: NDJSON, a JSON array, or raw payloads.
#
# An item's object has the same fields everywhere: id, queue, key, attempt, priority, flow, action,
# headers, and payload (text) or payload_b64 (bytes that are not UTF-8). All but id, key and payload
# are the same for a whole slice and are encoded once per slice.
#
# Measured, µs per item, for 1,000 items of 300 bytes in a Snappy run as NDJSON: dicts and
# json.dumps 9.9, this 0.9 (1.3 with keys), of which unpacking is 0.3. Structs that msgspec encodes
# as a whole would save 0.04, but encode the shared parts again for each item.

T = TypeVar("T")
Encoding = Literal["ndjson", "json", "raw"]

_json = msgspec.json.Encoder().encode
_unpacked = UnpackedRuns()

_JOINED_BY: Final = {"ndjson": b"\n", "json": b",", "raw": b"\n"}
_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A batch's body, and its items in the order sent."""

    body: bytes
    ids: list[str]
    places: list[tuple[int, int]]
    """For each item: its slice's number in the batch, and its index in its run."""
    rejected: tuple[ItemsFailed, ...] = ()
    """The items that could not be unpacked and are not in the body."""


def encode_batch(batch: Sequence[Slice], encoding: Encoding) -> Encoded:
    """The items of a batch in one body. An invalid run is reported, not raised.

    ndjson: one object per line, every line ended. json: an array. raw: payloads with line breaks
    between them (line breaks in a payload stay as they are); a single payload is sent as it is.
    """
    ids: list[str] = []
    places: list[tuple[int, int]] = []
    parts: list[bytes] = []
    rejected: list[ItemsFailed] = []
    for order, part in enumerate(batch):
        try:
            run = _unpacked.run_of(part)
            chosen = _Chosen(part.bits)
            item_ids = chosen.of(run.item_ids)
            encoded = chosen.of(run.payloads)
            if encoding != "raw":
                encoded = _objects(part, item_ids, chosen.of(run.keys), encoded)
        except (BadRun, IndexError) as problem:
            failure = Failure(
                f"cannot be unpacked: {problem}", is_permanent=True, blames_destination=False
            )
            rejected.append(ItemsFailed(order, part.bits, failure))
            continue
        ids += item_ids
        parts += encoded
        places += [(order, index) for index in chosen.of(range)]
    body = _JOINED_BY[encoding].join(parts)
    if encoding == "json":
        body = b"[" + body + b"]"
    elif encoding == "ndjson" and parts:
        body += b"\n"
    return Encoded(body, ids, places, tuple(rejected))


class _Chosen:
    """Selects the items whose bits are set from the range that a run's accessor returns."""

    def __init__(self, bits: int) -> None:
        self._first = lowest_bit(bits)
        self._last = bits.bit_length()
        self._flags = b""
        if bits.bit_count() < self._last - self._first:
            # The digits as numbers, first item first: 0.1 µs per item; loops take 2.
            digits = f"{bits >> self._first:b}"[::-1]
            self._flags = digits.encode().translate(_DIGITS)

    def of(self, accessor: Callable[[int, int], Sequence[T]]) -> list[T]:
        values = accessor(self._first, self._last)
        return list(compress(values, self._flags) if self._flags else values)


def _objects(part: Slice, ids: list[str], keys: list[bytes], payloads: list[bytes]) -> list[bytes]:
    head = part.run.head
    shared = {
        "attempt": part.attempt,
        "priority": head.priority,
        "flow": head.flow,
        "action": head.action,
        "headers": head.headers(),
    }
    before_key = b'","queue":%b,"key":' % _json(head.queue)
    after_key = b"," + _json(shared)[1:-1]
    if any(keys):
        middles = [before_key + _key(key) + after_key for key in keys]
    else:
        middles = [before_key + b"null" + after_key] * len(keys)
    return [
        b'{"id":"%b%b%b}' % (item_id.encode(), middle, payload)
        for item_id, middle, payload in zip(ids, middles, _payloads(payloads), strict=True)
    ]


def _payloads(payloads: list[bytes]) -> Iterator[bytes]:
    for payload in payloads:
        try:
            yield b',"payload":' + _json(payload.decode())
        except UnicodeDecodeError:
            yield b',"payload_b64":"' + base64.b64encode(payload) + b'"'


def _key(key: bytes) -> bytes:
    return _json(key.decode(errors="replace")) if key else b"null"


# A run's items as `forebay spool dump` shows them.


def run_objects(run: Run, done: int = 0) -> list[dict[str, Any]]:
    """The objects of a run's items, except those whose bit is set. Raises BadRun."""
    head = run.head
    shared: dict[str, Any] = {
        "attempt": head.attempt,
        "priority": head.priority,
        "flow": head.flow,
        "action": head.action,
        "headers": head.headers(),
    }
    items = zip(run.item_ids(), run.keys(), run.payloads(), strict=True)
    return [
        {
            "id": item_id,
            "queue": head.queue,
            "key": key.decode(errors="replace") if key else None,
            **shared,
            **_shown(payload),
        }
        for index, (item_id, key, payload) in enumerate(items)
        if not done >> index & 1
    ]


def _shown(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_b64": base64.b64encode(payload).decode()}


def object_line(item: dict[str, Any]) -> bytes:
    return _json(item) + b"\n"
