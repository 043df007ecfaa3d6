"""One item as operators see it: where it is, its state, and its history.

A sighting is made of what an owner reported at one moment. Pure functions; they unpack the item's
run, so a large one is described in a thread (`describe_apart`).
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from actors.model.correlation import correlation_of, trace_of
from actors.model.slices import HeldBy, ItemError, holder
from actors.model.states import State
from actors.ports.tiers import ColdSight, DeadLetter, Whereabouts
from actors.spooler.messages import JournalRun
from actors.workers.sending import Task
from forebay.errors import BadRun
from forebay.ids import format_item_id
from forebay.run import Run, RunHead
from forebay.stage_frames import write_of

PREVIEW_BYTES_MAX: Final = 64 * 1024
UNPACK_BYTES_MAX: Final = 128 * 1024
"""Above this size a thread unpacks: 128 KiB take about 0.1 ms."""
JOB_HEADER: Final = "job_id"
_PAST: Final = {State.DONE: "delivered", State.DELETED: "deleted", State.FAILED: "dead"}


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    state: State
    head: RunHead
    data: bytes
    index: int
    """The index in this run, which need not be the run that the item's id names."""
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]
    owner: JournalRun | ColdSight
    ended_ms: int | None = None
    holder: HeldBy | None = None
    """Which worker or consumer has it, or had it last."""
    result: str = ""
    job: str = ""
    """The job that has, or had, claimed it."""
    changed_ms: int = 0
    """When an operator last changed or retried it; 0: never."""
    first_due_ms: int = 0
    """When it was first due; 0: as its run says."""

    @property
    def bit(self) -> int:
        return 1 << self.index

    @property
    def is_borrowed(self) -> bool:
        """Lent to warm, or on its way there or back."""
        owner = self.owner
        return owner.is_lent if isinstance(owner, JournalRun) else owner.lock is not None


def of_journal(found: JournalRun, index: int, warm: Whereabouts, now_ms: int) -> Sighting | None:
    """None: it is settled."""
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
    told = (attempt, due_ms, errors, found, None, last_holder(state, errors))
    return Sighting(state, head, found.run.data, index, *told)


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
        found.holder or last_holder(state, found.errors),
        found.result,
        found.job,
        found.changed_ms,
        found.first_due_ms,
    )


def near_workers(bit: int, warm: Whereabouts) -> State | None:
    """None: warm does not have it."""
    if warm.leased & bit:
        return State.RUNNING
    if warm.scheduled & bit:
        return State.SCHEDULED
    return State.QUEUED if warm.waiting & bit else None


def last_holder(state: State, errors: Sequence[ItemError]) -> HeldBy | None:
    """The holder at its last attempt; None for a running item, which has another holder now."""
    return errors[-1].holder if errors and state is not State.RUNNING else None


def held_now(sighting: Sighting, tasks: Iterable[Task], host: str = "") -> Sighting:
    """The sighting with its present holder, which this daemon knows only for its own workers and
    consumers."""
    if sighting.state is not State.RUNNING:
        return sighting
    run_id = sighting.head.run_id
    for task in tasks:
        for slice_ in task.slices:
            if slice_.bits & sighting.bit and slice_.run.head.run_id == run_id:
                named = holder(host, task.queue, task.worker, task.began_ms)
                return replace(sighting, holder=named)
    return sighting


async def describe_apart(
    sighting: Sighting, *, payload: bool, whole: bool = False
) -> dict[str, Any]:
    """Everything known about an item. `whole`: do not cut a long payload."""
    bytes_max = sighting.head.raw_bytes if whole else PREVIEW_BYTES_MAX
    if sighting.head.raw_bytes <= UNPACK_BYTES_MAX:
        return describe(sighting, payload=payload, bytes_max=bytes_max)
    return await trio.to_thread.run_sync(
        lambda: describe(sighting, payload=payload, bytes_max=bytes_max)
    )


def describe(
    sighting: Sighting, *, payload: bool, bytes_max: int = PREVIEW_BYTES_MAX
) -> dict[str, Any]:
    run = Run(sighting.head, sighting.data)
    described = summary(sighting, run)
    described["headers"] = sighting.head.headers()
    described["errors"] = [error._asdict() for error in sighting.errors]
    described["timeline"] = timeline(sighting)
    described["owner"] = "journal" if isinstance(sighting.owner, JournalRun) else "cold"
    if payload:
        described |= preview(run, sighting.index, bytes_max)
    return described


def summary(sighting: Sighting, run: Run) -> dict[str, Any]:
    """What a list shows of it. `run` is the sighting's, unpacked once for all of its items."""
    head, index = sighting.head, sighting.index
    try:
        item_id = run.item_ids(index, index + 1)[0]
        key = run.keys(index, index + 1)[0].decode(errors="replace") or None
        size = len(run.payloads(index, index + 1)[0])
    except BadRun:
        # Delivery will report that the run is damaged.
        item_id, key, size = format_item_id(head.run_id, index), None, 0
    headers = head.headers() if head.packed_headers else {}
    write = write_of(head) if head.packed_headers else None
    errors, held = sighting.errors, sighting.holder
    scheduled_ms, initially_ms = scheduled(head, sighting.due_ms, sighting.first_due_ms)
    return {
        "id": item_id,
        "queue": head.queue,
        "state": sighting.state.value,
        "flow": head.flow,
        "action": head.action,
        "key": key,
        "priority": head.priority,
        "attempt": sighting.attempt,
        "retries": retries(sighting.state, sighting.attempt),
        "enqueued_ms": head.enqueued_ms,
        "updated_ms": updated_ms(sighting),
        "due_ms": sighting.due_ms or None,
        "scheduled_at_ms": scheduled_ms,
        "scheduled_at_initially_ms": initially_ms,
        "ended_ms": sighting.ended_ms,
        "bytes": size,
        "last_error": errors[-1].text if errors else None,
        "failure_reason": errors[-1].failure_reason if errors else None,
        "locked_by": None if held is None else held.by,
        "locked_ms": None if held is None else held.since_ms or None,
        "result": sighting.result or None,
        "correlation_id": correlation_of(headers),
        "traceparent": trace_of(headers),
        "receipt": None if write is None else write.hex(),
        "job": sighting.job or headers.get(JOB_HEADER),
    }


def scheduled(head: RunHead, due_ms: int, first_ms: int = 0) -> tuple[int, int]:
    """When an item is due, and when it was first due, which is never later. A retry, or an operator
    who postpones the item, moves only the former."""
    first_ms = first_ms or head.due_ms or head.enqueued_ms
    scheduled_ms = due_ms or first_ms
    return scheduled_ms, min(first_ms, scheduled_ms)


def retries(state: State, attempt: int) -> int:
    """How many times an item was retried. `attempt` counts finished attempts only."""
    return attempt if state is State.RUNNING else max(0, attempt - 1)


def updated_ms(sighting: Sighting) -> int:
    """When it last changed, as far as is known."""
    if sighting.ended_ms is not None:
        return max(sighting.ended_ms, sighting.changed_ms)
    known = [sighting.head.enqueued_ms, sighting.changed_ms]
    known += [error.at_ms for error in sighting.errors[-1:]]
    if sighting.holder is not None and sighting.state is State.RUNNING:
        known.append(sighting.holder.since_ms)
    return max(known)


def of_letter(letter: DeadLetter) -> dict[str, Any]:
    """The same for an entry of a list of dead letters."""
    last = letter.errors[-1] if letter.errors else None
    return {
        "id": letter.id,
        "queue": letter.queue,
        "state": State.FAILED.value,
        "flow": letter.flow,
        "action": letter.action,
        "key": letter.key,
        "priority": letter.priority,
        "attempt": letter.attempt,
        "retries": retries(State.FAILED, letter.attempt),
        "enqueued_ms": letter.enqueued_ms,
        "updated_ms": max(letter.died_ms, letter.changed_ms),
        "due_ms": None,
        "scheduled_at_ms": None,
        "scheduled_at_initially_ms": None,
        "ended_ms": letter.died_ms,
        "bytes": None,
        "last_error": last.text if last else None,
        "failure_reason": last.failure_reason if last else None,
        "locked_by": last.locked_by or None if last else None,
        "locked_ms": last.locked_ms or None if last else None,
        "result": None,
        "correlation_id": correlation_of(letter.headers),
        "traceparent": trace_of(letter.headers),
        "receipt": letter.headers.get("forebay-write"),
        "job": letter.headers.get(JOB_HEADER),
    }


def preview(run: Run, index: int, bytes_max: int = PREVIEW_BYTES_MAX) -> dict[str, Any]:
    """The payload, or the beginning of a long one; as text if it is text."""
    try:
        payload = run.payloads(index, index + 1)[0]
    except BadRun as problem:
        return {"payload": None, "payload_problem": str(problem)}
    start = payload[:bytes_max]
    is_cut = len(start) < len(payload)
    try:
        text = start.decode()
    except UnicodeDecodeError as problem:
        # A cut may split a character.
        if not (is_cut and problem.start >= len(start) - 3):
            encoded = base64.b64encode(start).decode()
            return {"payload_b64": encoded, "payload_is_cut": is_cut}
        text = start[: problem.start].decode()
    return {"payload": text, "payload_is_cut": is_cut}


def timeline(sighting: Sighting) -> list[dict[str, Any]]:
    """What is known about an item, in the order in which it happened."""
    head, state = sighting.head, sighting.state
    events: list[dict[str, Any]] = [_event(head.enqueued_ms, "accepted")]
    if head.due_ms:
        events[0]["text"] = f"to be delivered not before {head.due_ms}"
    for error in sighting.errors:
        events.append(_event(error.at_ms, "failed", f"attempt {error.attempt}: {error.text}"))
        if error.failure_reason == "business":
            events[-1]["text"] += " (a business failure)"
    if state in _PAST:
        attempts = f"after {sighting.attempt} attempts" if sighting.attempt > 1 else ""
        events.append(_event(sighting.ended_ms, _PAST[state], attempts))
    if sighting.changed_ms:
        events.append(_event(sighting.changed_ms, "changed", "by an operator"))
        events.sort(key=lambda event: event["at_ms"] or 0)
    if state in _PAST:
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
