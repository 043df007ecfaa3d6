"""Pushes over HTTP: packs items into runs, and hands them to the same intake as the socket.

A push is answered when its run is on disk, as on the socket, or refused in the same words. If the
request is cancelled, its run is still stored, but not answered.
"""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import trio

from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.refusals import draining, too_large, unknown_queue
from actors.spooler.messages import Append, OfferRun
from daemon.http.doors import ANSWER_S, Doors
from daemon.http.models.items import NewItem
from daemon.http.problems import Problem
from forebay.encode import encode_run
from forebay.errors import BadRun, Refused
from forebay.ids import format_item_id, new_run_id, parse_run_id
from forebay.keyed import ONLY_IF_HEADER, read_decided, read_outcomes
from forebay.limits import (
    FRAME_HEAD_BYTES,
    KEY_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_NORMAL,
    TIME_MS_MAX,
)
from forebay.run import read_head
from forebay.stage_frames import WRITE_HEADER
from forebay.wire import Outcome

RESERVED: Final = frozenset({WRITE_HEADER, ONLY_IF_HEADER})
"""Headers that the daemon interprets."""


class Share(NamedTuple):
    """The fields that all items of a run share."""

    flow: str
    action: str
    priority: int
    due_ms: int
    headers: tuple[tuple[str, str], ...]


class Made(NamedTuple):
    """An item, checked and ready to be stored."""

    payload: bytes
    key: bytes
    share: Share


class Waiter:
    """Receives the answer to one push: one for all items, or one per item for a keyed queue."""

    def __init__(self, items: int) -> None:
        self._items = items
        self._answer: list[str] | Refused | None = None
        self._there = trio.Event()

    def put(self, _sequence: int, answer: Outcome | Refused) -> None:
        self._answer = answer if isinstance(answer, Refused) else [answer.name] * self._items

    def answer(self, _sequence: int, data: bytes) -> None:
        try:
            outcomes = read_decided(data[FRAME_HEAD_BYTES:], self._items)
            self._answer = [outcome.name for outcome in read_outcomes(outcomes)]
        except Exception as problem:
            self._answer = INTERNAL_ERRORS.note(problem, "HTTP")

    def refuse(self, _sequence: int, refused: Refused) -> None:
        self._answer = refused

    def flush(self) -> None:
        if self._answer is not None:
            self._there.set()

    async def wait(self, seconds: float) -> list[str]:
        """Raises Refused, or TooSlowError."""
        with trio.fail_after(seconds):
            await self._there.wait()
        if isinstance(self._answer, Refused):
            raise self._answer
        assert self._answer is not None
        return self._answer


class Push(NamedTuple):
    """A run that is being stored."""

    ids: list[str]
    waiter: Waiter
    patience_s: float

    async def wait(self) -> list[str]:
        """Waits for the outcome of each item."""
        return await self.waiter.wait(self.patience_s)


def check_queue(doors: Doors, queue: str) -> None:
    """Raises Refused if nothing can be added to the queue now."""
    if doors.is_draining:
        raise draining()
    if doors.catalogue.queue(queue) is None:
        raise unknown_queue(queue)


async def begin_push(
    doors: Doors, queue: str, items: Sequence[Made], run_id: bytes | None = None
) -> Push:
    """Hands the items of one run to the intake; `Push.wait` returns their outcomes."""
    check_queue(doors, queue)
    share, run_id = items[0].share, run_id or new_run_id()
    keys = [item.key for item in items]
    try:
        data = encode_run(
            [item.payload for item in items],
            queue=queue,
            keys=keys if any(keys) else None,
            flow=share.flow,
            action=share.action,
            priority=share.priority,
            due_ms=share.due_ms,
            headers=dict(share.headers),
            run_id=run_id,
        )
    except BadRun as problem:
        raise Refused("BAD_RUN", str(problem)) from problem
    head = read_head(data)
    if head.raw_bytes > doors.settings.socket.max_run_bytes:
        raise too_large(doors.settings.socket.max_run_bytes)
    waiter = Waiter(len(items))
    try:
        if doors.keys.is_keyed(queue):
            await doors.keys.offers.send(OfferRun(head, data, waiter, 0))
        else:
            await doors.tiers.spooler.client.send(Append(head, data, waiter, 0))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        raise draining() from None
    ids = [format_item_id(run_id, index) for index in range(len(items))]
    patience_s = doors.catalogue.settings_of(queue).full_timeout + ANSWER_S
    return Push(ids, waiter, patience_s)


def made(new: NewItem, priorities: Mapping[str, int], now_ms: int) -> Made:
    """Raises Problem 422 if it is not a valid item."""
    key = as_bytes("reference", new.reference or "")
    if len(key) > KEY_BYTES_MAX:
        raise Problem(422, f"reference has at most {KEY_BYTES_MAX} bytes", "invalid")
    for name, value in (*new.headers.items(), ("flow", new.flow), ("action", new.action)):
        as_bytes(name, name + value)
        if name in RESERVED:
            raise Problem(422, f"the header {name} is the daemon's own", "invalid")
    share = Share(
        new.flow,
        new.action,
        priority_of(new.priority, priorities),
        due_of(new, now_ms),
        tuple(sorted(new.headers.items())),
    )
    return Made(payload_of(new.payload, new.payload_b64) or b"", key, share)


def run_id_of(new: NewItem) -> bytes | None:
    return None if new.run_id is None else parse_run_id(new.run_id)


def payload_of(value: Any, encoded: str | None) -> bytes | None:
    """None if no payload is given. A text is used as it is; any other value as JSON."""
    if value is not None and encoded is not None:
        raise Problem(422, "give payload or payload_b64, not both", "invalid")
    if encoded is not None:
        try:
            return b64decode(encoded, validate=True)
        except ValueError:
            raise Problem(422, "payload_b64 is not base64", "invalid") from None
    if value is None:
        return None
    if isinstance(value, str):
        return as_bytes("payload", value)
    try:
        # 100,000 numbers take 5 ms; `json`, which tells NaN from null, takes 80.
        data = msgspec.json.encode(value)
        if b"null" in data:
            json.dumps(value, allow_nan=False)
        return data
    except ValueError as problem:
        if not isinstance(problem, UnicodeEncodeError):
            raise Problem(422, "payload: NaN and Infinity are not JSON", "invalid") from None
        raise Problem(422, "payload: a text has half of a surrogate pair", "invalid") from None


def priority_of(priority: int | str | None, priorities: Mapping[str, int]) -> int:
    if priority is None:
        return priorities.get("normal", PRIORITY_NORMAL)
    if isinstance(priority, str):
        if priority not in priorities:
            known = ", ".join(priorities)
            raise Problem(422, f"priority: the labels are {known}, not {priority[:40]}", "invalid")
        return priorities[priority]
    if not 0 <= priority <= PRIORITY_MAX:
        raise Problem(422, f"priority is 0 to {PRIORITY_MAX}", "invalid")
    return priority


def due_of(new: NewItem, now_ms: int) -> int:
    if new.due_ms is not None and new.delay_s is not None:
        raise Problem(422, "give due_ms or delay_s, not both", "invalid")
    if new.delay_s:
        return min(TIME_MS_MAX, now_ms + round(new.delay_s * 1000))
    return new.due_ms or 0


def as_bytes(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Problem(422, f"{name} has half of a character", "invalid") from None
