"""Frames about leases (docs/protocol.md): leased items and their outcomes, for both ends.

Bodies in, bodies out, no I/O. Whatever the input, a reader raises BadFrame and nothing else, and
allocates nothing before the length it allocates for has been checked. Sets of items are numbers:
bit i stands for item i. In LEASED the bits are about the run; from there on an item is counted
within its lease, so that a client need not know which run the daemon keeps it in.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from forebay.errors import BadFrame, BadRun
from forebay.head import check_queue_name
from forebay.item import FailureReason
from forebay.limits import (
    ATTEMPT_MAX,
    CONSUMER_BYTES_MAX,
    ITEM_BITS_BYTES_MAX,
    LEASE_HEAD_BYTES,
    LEASE_ITEMS_DEFAULT,
    LEASE_ITEMS_MAX,
    LEASE_MS_MAX,
    LEASE_RUN_BYTES_DEFAULT,
    LEASE_RUN_BYTES_MAX,
    LEASE_WAIT_MS_MAX,
    LEASES_MAX,
    RUN_ITEMS_MAX,
    SETTLE_PARTS_MAX,
    SETTLE_TEXT_BYTES_MAX,
    SETTLE_TEXTS_BYTES_MAX,
)
from forebay.wire import Buffer, Kind, frame, number_in, pack_json, read_json, text

TOKEN_MAX: Final = 2**64 - 1
NO_DELAY: Final = 2**32 - 1
"""As the queue's backoff says."""

_COUNT = struct.Struct("<H")
_LEASE = struct.Struct("<QQHHI")
_SETTLED_LEASE = struct.Struct("<QH")
_PART = struct.Struct("<BBIHH")
_EXTENSION = struct.Struct("<IH")

_PERMANENT: Final = 1
_BUSINESS: Final = 2
_HELD: Final = 0
_LOST: Final = 1

assert _LEASE.size == LEASE_HEAD_BYTES


class What(IntEnum):
    """The outcome of items."""

    DELIVERED = 1
    FAILED = 2
    RELEASED = 3


@dataclass(frozen=True, slots=True)
class LeaseWish:
    """The body of a LEASE."""

    queue: str
    items: int = LEASE_ITEMS_DEFAULT
    bytes: int = LEASE_RUN_BYTES_DEFAULT
    lease_ms: int = 0
    """0: as the queue says."""
    wait_ms: int = 0
    consumer: str = ""
    keep: bool = False
    """The leases outlive the connection."""
    times: bool = False
    """The answer says when what is leased was due."""


class LeasedRun(NamedTuple):
    """A lease, as a LEASED has it."""

    token: int
    until_ms: int
    attempt: int
    bits: int
    """Of the run's items; 0: all of them."""
    run: bytes
    due_ms: int | None = None
    """When these items were due this time, 0: at once. None: it was not asked for."""


class Part(NamedTuple):
    """The outcome of some of a lease's items."""

    what: What
    bits: int = 0
    """Of the lease's items; 0: all that no part before names."""
    text: str = ""
    """Of failed items the error, of delivered ones the result."""
    delay_ms: int | None = None
    """None: as the queue's backoff says."""
    is_permanent: bool = False
    failure_reason: FailureReason = "application"


class LeaseReport(NamedTuple):
    """The end of a lease, as a SETTLE has it."""

    token: int
    parts: tuple[Part, ...]


def lease(sequence: int, wish: LeaseWish) -> bytes:
    """A whole LEASE frame."""
    return frame(Kind.LEASE, sequence, pack_lease(wish))


def pack_lease(wish: LeaseWish) -> bytes:
    """The body of a LEASE: the queue, and what differs from the defaults."""
    members: dict[str, Any] = {"queue": wish.queue}
    if wish.items != LEASE_ITEMS_DEFAULT:
        members["items"] = wish.items
    if wish.bytes != LEASE_RUN_BYTES_DEFAULT:
        members["bytes"] = wish.bytes
    for name in ("lease_ms", "wait_ms", "consumer", "keep", "times"):
        if value := getattr(wish, name):
            members[name] = value
    return pack_json(members)


def read_lease(body: Buffer) -> LeaseWish:
    content = read_json(body)
    queue = text(content, "queue")
    check_queue(queue)
    consumer = content.get("consumer", "")
    if not isinstance(consumer, str) or len(consumer.encode(errors="replace")) > CONSUMER_BYTES_MAX:
        raise BadFrame(f"consumer is not a text of at most {CONSUMER_BYTES_MAX} bytes")
    return LeaseWish(
        queue=queue,
        items=number_in(content, "items", 1, LEASE_ITEMS_MAX, LEASE_ITEMS_DEFAULT),
        bytes=number_in(content, "bytes", 1, LEASE_RUN_BYTES_MAX, LEASE_RUN_BYTES_DEFAULT),
        lease_ms=number_in(content, "lease_ms", 0, LEASE_MS_MAX, 0),
        wait_ms=number_in(content, "wait_ms", 0, LEASE_WAIT_MS_MAX, 0),
        consumer=consumer,
        keep=_flag(content, "keep"),
        times=_flag(content, "times"),
    )


def _flag(content: dict[str, Any], name: str) -> bool:
    value = content.get(name, False)
    if not isinstance(value, bool):
        raise BadFrame(f"{name} is not true or false")
    return value


def pack_leased(leases: Sequence[LeasedRun]) -> bytes:
    """The times stand behind the leases, for all of them or for none."""
    times = [lease.due_ms for lease in leases if lease.due_ms is not None]
    if times and len(times) != len(leases):
        raise ValueError("some leases say when they were due, and some do not")
    return b"".join((*lease_parts(leases), struct.pack(f"<{len(times)}Q", *times)))


def lease_parts(leases: Sequence[LeasedRun]) -> list[bytes]:
    """The body of a LEASED, not yet joined: a FETCHED ends in the same way."""
    parts: list[bytes] = [_COUNT.pack(len(leases))]
    for token, until_ms, attempt, bits, run, _ in leases:
        packed = pack_bits(bits)
        # The last attempt of a run that came with the most is one too many.
        attempt = min(attempt, ATTEMPT_MAX)
        parts += (_LEASE.pack(token, until_ms, attempt, len(packed), len(run)), packed, run)
    return parts


def read_leased(body: Buffer) -> list[LeasedRun]:
    reader = _Reader(body, "a LEASED")
    leases = _read_leases(reader, "a LEASED")
    if reader.is_at_end:
        return leases
    times = reader.unpack(struct.Struct(f"<{len(leases)}Q"))
    reader.end()
    return [lease._replace(due_ms=due) for lease, due in zip(leases, times, strict=True)]


def read_leases(body: Buffer, name: str) -> list[LeasedRun]:
    """`name` is for the error."""
    reader = _Reader(body, name)
    leases = _read_leases(reader, name)
    reader.end()
    return leases


def _read_leases(reader: "_Reader", name: str) -> list[LeasedRun]:
    (count,) = reader.unpack(_COUNT)
    leases = []
    for _ in range(count):
        token, until_ms, attempt, bits_len, run_bytes = reader.unpack(_LEASE)
        bits = reader.bits(bits_len)
        if bits_len and not bits:
            raise BadFrame(f"{name} has a lease of no items")
        leases.append(LeasedRun(token, until_ms, attempt, bits, reader.take(run_bytes)))
    return leases


def pack_settle(queue: str, reports: Sequence[LeaseReport]) -> bytes:
    """The body of a SETTLE; texts that are too long are cut."""
    parts = [_pack_queue(queue), _COUNT.pack(len(reports))]
    for report in reports:
        parts.append(pack_report(report))
    return b"".join(parts)


def pack_report(report: LeaseReport) -> bytes:
    """One lease of a SETTLE."""
    packed = [_SETTLED_LEASE.pack(report.token, len(report.parts))]
    room = min(SETTLE_TEXT_BYTES_MAX, SETTLE_TEXTS_BYTES_MAX // max(1, len(report.parts)))
    for part in report.parts:
        bits = pack_bits(part.bits)
        said = b"" if part.what is What.RELEASED else _cut(part.text, room)
        flags, delay = _flags_and_delay(part) if part.what is What.FAILED else (0, 0)
        packed += (_PART.pack(part.what, flags, delay, len(bits), len(said)), bits, said)
    return b"".join(packed)


def _flags_and_delay(failed: Part) -> tuple[int, int]:
    flags = _PERMANENT if failed.is_permanent else 0
    if failed.failure_reason == "business":
        flags |= _BUSINESS
    return flags, NO_DELAY if failed.delay_ms is None else failed.delay_ms


def read_settle(body: Buffer) -> tuple[str, list[LeaseReport]]:
    reader = _Reader(body, "a SETTLE")
    queue = reader.queue()
    reports = []
    total = 0
    for _ in range(reader.lease_count()):
        token, part_count = reader.unpack(_SETTLED_LEASE)
        total += part_count
        if total > SETTLE_PARTS_MAX:
            raise BadFrame(f"a SETTLE has at most {SETTLE_PARTS_MAX} parts")
        if part_count == 1 and reader.skip(_DELIVERED):
            # Nearly all leases end so: 4,096 of them take 7 ms instead of 36.
            parts = _ALL_DELIVERED
        else:
            parts = tuple(_read_part(reader) for _ in range(part_count))
        reports.append(LeaseReport(token, parts))
    reader.end()
    return queue, reports


def pack_extend(queue: str, lease_ms: int, tokens: Sequence[int]) -> bytes:
    head = _pack_queue(queue) + _EXTENSION.pack(lease_ms, len(tokens))
    return head + struct.pack(f"<{len(tokens)}Q", *tokens)


def read_extend(body: Buffer) -> tuple[str, int, list[int]]:
    """Queue, milliseconds and tokens."""
    reader = _Reader(body, "an EXTEND")
    queue = reader.queue()
    lease_ms, count = reader.unpack(_EXTENSION)
    if lease_ms > LEASE_MS_MAX:
        raise BadFrame(f"a lease lasts at most {LEASE_MS_MAX} ms, not {lease_ms}")
    _check_lease_count(count)
    tokens = list(reader.unpack(struct.Struct(f"<{count}Q")))
    reader.end()
    return queue, lease_ms, tokens


def pack_statuses(held: Sequence[bool]) -> bytes:
    """The body of a SETTLED or EXTENDED."""
    return _COUNT.pack(len(held)) + bytes(_HELD if is_held else _LOST for is_held in held)


def read_statuses(body: Buffer) -> list[bool]:
    reader = _Reader(body, "a list of leases")
    (count,) = reader.unpack(_COUNT)
    statuses = reader.take(count)
    reader.end()
    if statuses.strip(b"\x00\x01"):
        raise BadFrame("a lease has an unknown status")
    return [status == _HELD for status in statuses]


def pack_bits(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _read_part(reader: "_Reader") -> Part:
    number, flags, delay, bits_len, text_len = reader.unpack(_PART)
    if number not in _WHATS:
        raise BadFrame(f"a part says {number}, which is not known")
    what = _WHATS[number]
    is_failed = what is What.FAILED
    if flags & ~(_PERMANENT | _BUSINESS) or (not is_failed and (flags or delay)):
        raise BadFrame("a part says more than there is to say")
    if what is What.RELEASED and text_len:
        raise BadFrame("a part with released items has a text: text_len must be 0")
    bits = reader.bits(bits_len)
    if bits_len and not bits:
        raise BadFrame("a part is about no items")
    try:
        said = reader.take(text_len).decode()
    except UnicodeDecodeError as problem:
        raise BadFrame("an error or result is not UTF-8") from problem
    delay_ms = None if not is_failed or delay == NO_DELAY else delay
    reason: FailureReason = "business" if flags & _BUSINESS else "application"
    return Part(what, bits, said, delay_ms, bool(flags & _PERMANENT), reason)


_WHATS: Final = {int(what): what for what in What}
_DELIVERED: Final = _PART.pack(What.DELIVERED, 0, 0, 0, 0)
_ALL_DELIVERED: Final[tuple[Part, ...]] = (Part(What.DELIVERED),)


class _Reader:
    """Takes one field after the other out of a body."""

    __slots__ = ("_at", "_body", "_name")

    def __init__(self, body: Buffer, name: str) -> None:
        self._body = body
        self._at = 0
        self._name = name

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._body):
            raise BadFrame(f"{self._name} is too short")
        return bytes(self._body[start : self._at])

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        start, self._at = self._at, self._at + form.size
        if self._at > len(self._body):
            raise BadFrame(f"{self._name} is too short")
        return form.unpack_from(self._body, start)

    def skip(self, data: bytes) -> bool:
        """Whether these bytes come next; they are passed over."""
        end = self._at + len(data)
        if self._body[self._at : end] != data:
            return False
        self._at = end
        return True

    def bits(self, size: int) -> int:
        if size > ITEM_BITS_BYTES_MAX:
            raise BadFrame(f"a run has at most {RUN_ITEMS_MAX} items")
        return int.from_bytes(self.take(size), "little")

    def queue(self) -> str:
        try:
            queue = self.take(self.take(1)[0]).decode()
        except UnicodeDecodeError as problem:
            raise BadFrame("a queue's name is not UTF-8") from problem
        check_queue(queue)
        return queue

    def lease_count(self) -> int:
        count: int = self.unpack(_COUNT)[0]
        _check_lease_count(count)
        return count

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._body)

    def end(self) -> None:
        if not self.is_at_end:
            raise BadFrame(f"{self._name} is too long")


def _check_lease_count(count: int) -> None:
    if not 1 <= count <= LEASES_MAX:
        raise BadFrame(f"1 to {LEASES_MAX} leases are named at a time, not {count}")


def check_queue(queue: str) -> None:
    try:
        check_queue_name(queue)
    except BadRun as problem:
        raise BadFrame(str(problem)) from problem


def _pack_queue(queue: str) -> bytes:
    packed = queue.encode()
    return bytes([len(packed)]) + packed


def as_text(value: Any) -> str:
    """An error or a result as it is kept: a text as it is, any other value as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _cut(text: str, bytes_max: int) -> bytes:
    """At most `bytes_max` bytes of whole characters; an ellipsis shows that the text was cut."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return data
    ellipsis = "…".encode()
    return data[: bytes_max - len(ellipsis)].decode(errors="ignore").encode() + ellipsis
