"""One item as somebody sees it: where it is, in which state, and its life so far.

A sighting is made of what an owner said at one moment. Pure functions; they unpack the run that
the item is in, so that for a large one they are a thread's work (`describe_apart`).
"""

import base64
from dataclasses import dataclass
from typing import Any, Final

import trio

from actors.messages import JournalRun
from actors.slices import ItemError
from actors.states import State
from actors.tiers import ColdSight, DeadLetter, Whereabouts
from forebay.errors import BadRun
from forebay.ids import format_item_id
from forebay.run import Run, RunHead
from forebay.stage_frames import write_of

PREVIEW_BYTES_MAX: Final = 64 * 1024
UNPACK_BYTES_MAX: Final = 128 * 1024
"""To unpack more than that is a thread's work: 128 KiB take about 0.1 ms."""
CORRELATION_HEADERS: Final = ("correlation_id", "correlation-id", "x-correlation-id")
JOB_HEADER: Final = "job_id"
_PAST: Final = {State.DONE: "delivered", State.DELETED: "deleted", State.FAILED: "dead"}


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    state: State
    head: RunHead
    data: bytes
    index: int
    """Within this run, which need not be the one that its id names."""
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]
    owner: JournalRun | ColdSight
    ended_ms: int | None = None

    @property
    def bit(self) -> int:
        return 1 << self.index

    @property
    def is_borrowed(self) -> bool:
        """Lent to warm, or on its way there or back."""
        owner = self.owner
        return owner.is_lent if isinstance(owner, JournalRun) else owner.lock is not None


def of_journal(found: JournalRun, index: int, warm: Whereabouts, now_ms: int) -> Sighting | None:
    """None: it was settled."""
    bit, head = 1 << index, found.run.head
    if index >= head.count or found.done & bit:
        return None
    attempt, due_ms = head.attempt, head.due_ms
    errors: tuple[ItemError, ...] = ()
    for portion in found.portions:
        if portion.bits & bit:
            attempt, due_ms, errors = portion.attempt, portion.due_ms, portion.errors
    state = near_workers(bit, warm) if found.is_lent else None
    if state is None:
        state = State.SCHEDULED if due_ms > now_ms else State.SPOOLED
    return Sighting(state, head, found.run.data, index, attempt, due_ms, errors, found)


def of_cold(found: ColdSight, index: int, warm: Whereabouts) -> Sighting:
    match found.state:
        case "COLD_QUEUED":
            borrowed = near_workers(1 << index, warm) if found.lock is not None else None
            state = borrowed or State.COLD_QUEUED
        case "CLAIMED":
            state = State.RUNNING
        case "FAILED":
            state = State.FAILED
        case "delivered":
            state = State.DONE
        case "deleted":
            state = State.DELETED
    return Sighting(
        state,
        found.head,
        found.data,
        index,
        found.attempt,
        found.due_ms,
        found.errors,
        found,
        found.ended_ms,
    )


def near_workers(bit: int, warm: Whereabouts) -> State | None:
    """None: warm has not got it."""
    if warm.leased & bit:
        return State.RUNNING
    if warm.scheduled & bit:
        return State.SCHEDULED
    return State.QUEUED if warm.waiting & bit else None


async def describe_apart(sighting: Sighting, *, payload: bool) -> dict[str, Any]:
    """All there is to be said of an item."""
    if sighting.head.raw_bytes <= UNPACK_BYTES_MAX:
        return describe(sighting, payload=payload)
    return await trio.to_thread.run_sync(lambda: describe(sighting, payload=payload))


def describe(sighting: Sighting, *, payload: bool) -> dict[str, Any]:
    run = Run(sighting.head, sighting.data)
    described = summary(sighting, run)
    described["headers"] = sighting.head.headers()
    described["errors"] = [error._asdict() for error in sighting.errors]
    described["timeline"] = timeline(sighting)
    described["owner"] = "journal" if isinstance(sighting.owner, JournalRun) else "cold"
    if payload:
        described |= preview(run, sighting.index)
    return described


def summary(sighting: Sighting, run: Run) -> dict[str, Any]:
    """What a list says of it. `run` is the sighting's, unpacked once for all of its items."""
    head, index = sighting.head, sighting.index
    try:
        item_id = run.item_ids(index, index + 1)[0]
        key = run.keys(index, index + 1)[0].decode(errors="replace") or None
        size = len(run.payloads(index, index + 1)[0])
    except BadRun:
        # Whoever delivers it will say so.
        item_id, key, size = format_item_id(head.run_id, index), None, 0
    headers = head.headers() if head.packed_headers else {}
    write = write_of(head) if head.packed_headers else None
    return {
        "id": item_id,
        "queue": head.queue,
        "state": sighting.state.value,
        "flow": head.flow,
        "action": head.action,
        "key": key,
        "priority": head.priority,
        "attempt": sighting.attempt,
        "enqueued_ms": head.enqueued_ms,
        "due_ms": sighting.due_ms or None,
        "ended_ms": sighting.ended_ms,
        "bytes": size,
        "last_error": sighting.errors[-1].text if sighting.errors else None,
        "correlation_id": correlation_of(headers),
        "receipt": None if write is None else write.hex(),
        "job": headers.get(JOB_HEADER),
    }


def of_letter(letter: DeadLetter) -> dict[str, Any]:
    """The same of a dead letter as a list of those has it."""
    return {
        "id": letter.id,
        "queue": letter.queue,
        "state": State.FAILED.value,
        "flow": letter.flow,
        "action": letter.action,
        "key": letter.key,
        "priority": letter.priority,
        "attempt": letter.attempt,
        "enqueued_ms": letter.enqueued_ms,
        "due_ms": None,
        "ended_ms": letter.died_ms,
        "bytes": None,
        "last_error": letter.errors[-1].text if letter.errors else None,
        "correlation_id": correlation_of(letter.headers),
        "receipt": letter.headers.get("forebay-write"),
        "job": letter.headers.get(JOB_HEADER),
    }


def correlation_of(headers: Any) -> str | None:
    return next((headers[name] for name in CORRELATION_HEADERS if name in headers), None)


def preview(run: Run, index: int) -> dict[str, Any]:
    """The payload, or the beginning of a long one: as text where it is one."""
    try:
        payload = run.payloads(index, index + 1)[0]
    except BadRun as problem:
        return {"payload": None, "payload_problem": str(problem)}
    start = payload[:PREVIEW_BYTES_MAX]
    is_cut = len(start) < len(payload)
    try:
        text = start.decode()
    except UnicodeDecodeError as problem:
        # A cut may go through a character.
        if not (is_cut and problem.start >= len(start) - 3):
            encoded = base64.b64encode(start).decode()
            return {"payload_b64": encoded, "payload_is_cut": is_cut}
        text = start[: problem.start].decode()
    return {"payload": text, "payload_is_cut": is_cut}


def timeline(sighting: Sighting) -> list[dict[str, Any]]:
    """An item's life: what is known of it, in the order in which it happened."""
    head, state = sighting.head, sighting.state
    events: list[dict[str, Any]] = [_event(head.enqueued_ms, "accepted")]
    if head.due_ms:
        events[0]["text"] = f"to be delivered not before {head.due_ms}"
    for error in sighting.errors:
        events.append(_event(error.at_ms, "failed", f"attempt {error.attempt}: {error.text}"))
    if state in _PAST:
        attempts = f"after {sighting.attempt} attempts" if sighting.attempt > 1 else ""
        events.append(_event(sighting.ended_ms, _PAST[state], attempts))
        return events
    where = {
        State.SPOOLED: "in the journal",
        State.SCHEDULED: "waits for its time",
        State.QUEUED: "warm, the next to be taken",
        State.COLD_QUEUED: "in the cold store",
        State.RUNNING: "with a worker or consumer",
    }
    events.append(_event(None, state.value.lower(), where[state]))
    if sighting.due_ms and state is not State.RUNNING:
        events.append(_event(sighting.due_ms, "due", f"attempt {sighting.attempt + 1}"))
    return events


def _event(at_ms: int | None, what: str, text: str = "") -> dict[str, Any]:
    return {"at_ms": at_ms, "what": what, "text": text}
