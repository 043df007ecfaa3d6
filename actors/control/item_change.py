"""Changes one waiting item: deletes it, changes its payload, priority or time, or gives it up.

The holder of the item must let go of it first: an item in warm, or in the promoter's line, is
withdrawn there in one step, so that no worker can lease it any more; an item that waits in the
journal or in cold is changed in place by its owner, if it is still there. Then the owner makes the
change durable:

    delete    journal: a DELETED mark in a group commit      cold: out of its row, in a transaction
    change    journal: handed over to cold as a run of its own, with the same id
              cold: another row in place of the item, in a transaction

`False` means that the item was not where it was seen, and nothing has changed: look again. A step
that has begun is completed, shielded, within a deadline. It cannot change an item that a worker or
consumer has.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import trio

from actors.control.item_view import Sighting
from actors.model.runs import Fate, Origin, pack_origin
from actors.model.slices import InCold, InJournal, ItemError, Slice, remember
from actors.ports.tiers import Limits, NewRow, StoreUnavailable
from actors.spooler.messages import (
    HandedOver,
    JournalRun,
    Reply,
    Settle,
    Settled,
    Voided,
)
from actors.tiers.handover import Transfer
from actors.tiers.tiers import Tiers
from forebay.encode import encode_run
from forebay.ids import new_run_id
from forebay.run import KEYS, Run, RunHead, read_head

STEP_S: Final = 30.0
RECORD_S: Final = 10.0
NO_LIMITS: Final = Limits(2**62, 2**62)


class Unrecorded(StoreUnavailable):
    """The journal was told, but its disk has not taken it yet: it will, or recovery resolves it."""


class Change(NamedTuple):
    """What to change; None: leave it as it is."""

    payload: bytes | None = None
    priority: int | None = None
    due_ms: int | None = None
    """0: at once."""
    error: str | None = None
    """The item is given up, as a dead letter, for this reason."""


class Changer:
    def __init__(
        self,
        tiers: Tiers,
    ) -> None:
        self._tiers = tiers
        self._spooler = tiers.spooler.client
        self._warm = tiers.warm
        self._cold = tiers.cold.items
        self._hand_over = tiers.hand_over

    async def apply(self, sighting: Sighting, change: Change | None) -> bool:
        """Changes a waiting item, or deletes it (None). Raises BadRun if the result is invalid."""
        new = None if change is None else new_row(sighting, change, self._tiers.now_ms())
        with trio.move_on_after(STEP_S, shield=True):
            is_done = await self._apply(sighting, new)
            self._tiers.wake(sighting.head.queue)
            return is_done
        raise StoreUnavailable(f"the change is not known to be recorded after {STEP_S:g} s")

    async def _apply(self, sighting: Sighting, new: NewRow | None) -> bool:
        if sighting.is_borrowed:
            return await self._from_warm(sighting, new)
        owner = sighting.owner
        if isinstance(owner, JournalRun):
            return await self._in_journal(owner, sighting.bit, new)
        return await self._in_cold(owner.row, sighting.bit, None, new)

    async def _in_journal(self, found: JournalRun, bit: int, new: NewRow | None) -> bool:
        run, head = found.run, found.run.head
        voided = Voided(
            run.position,
            run.size,
            head.count,
            head.queue,
            head.priority,
            head.run_id,
            bit,
            Fate.DELETED if new is None else Fate.HANDED_OVER,
        )
        if new is None:
            return await self._settle(voided)
        return await self._move(new, voided)

    async def _in_cold(self, row: bytes, bit: int, lock: bytes | None, new: NewRow | None) -> bool:
        if new is None:
            return await self._cold.delete(row, bit, lock)
        return await self._cold.change(row, bit, lock, new)

    async def _from_warm(self, sighting: Sighting, new: NewRow | None) -> bool:
        """False also if warm does not have it: it is leased, or on its way."""
        queue, bit, run_id = sighting.head.queue, sighting.bit, sighting.head.run_id
        slices = await self._warm.withdraw(queue, run_id=run_id)
        own = [part for part in slices if part.bits & bit]
        if rest := without(slices, bit):
            # They were here a moment ago, so they go back regardless of the limits.
            await self._warm.enter(queue, rest, NO_LIMITS)
        line = None if own else self._tiers.states.line(queue)
        if line is not None:
            waiting = line.withdraw(run_id=run_id)
            own = [part for part in waiting if part.bits & bit]
            line.join(without(waiting, bit))
        if not own:
            return False
        part = replace(own[0], bits=bit)
        try:
            return await self._tell_owner(part, new)
        except Unrecorded:
            raise
        except BaseException:
            # This task holds the only reference: no other would bring it back.
            if line is not None:
                line.join([part])
                raise
            with trio.CancelScope(shield=True):
                await self._warm.enter(queue, [part], NO_LIMITS)
            raise

    async def _tell_owner(self, part: Slice, new: NewRow | None) -> bool:
        owner, head, index = part.run.owner, part.run.head, part.bits.bit_length() - 1
        if isinstance(owner, InCold):
            return await self._in_cold(owner.row, part.bits, owner.lock, new)
        if not isinstance(owner, InJournal):
            await self._warm.enter(head.queue, [part], NO_LIMITS)
            return False
        where = (owner.token, owner.position, head.run_id)
        if new is None:
            return await self._settle(Settled(*where, index, index + 1, Fate.DELETED))
        return await self._move(new, HandedOver(*where, part.bits))

    async def _settle(self, outcome: Settled | Voided) -> bool:
        """Records the outcome in the journal; durable on return."""
        asked = Reply[list[bool]]()
        await self._spooler.send(Settle((outcome,), asked))
        with trio.move_on_after(RECORD_S):
            return (await asked.wait())[0]
        raise Unrecorded(f"the journal has recorded nothing for {RECORD_S:g} s")

    async def _move(self, new: NewRow, from_: HandedOver | Voided) -> bool:
        origin = pack_origin(Origin(from_.position, from_.run_id, from_.bits))
        return await self._hand_over.move_one(Transfer(replace(new, origin=origin), from_))


def without(slices: Sequence[Slice], bit: int) -> list[Slice]:
    """The slices without this item."""
    return [replace(part, bits=part.bits & ~bit) for part in slices if part.bits != bit]


def new_row(sighting: Sighting, change: Change, now_ms: int) -> NewRow:
    """The changed item: a run of its own, in which it keeps its id."""
    head, index = sighting.head, sighting.index
    run = Run(head, sighting.data)
    due_ms = sighting.due_ms if change.due_ms is None else change.due_ms
    key = run.keys(index, index + 1) if head.flags & KEYS else [b""]
    payload = change.payload
    data = encode_run(
        run.payloads(index, index + 1) if payload is None else [payload],
        queue=head.queue,
        keys=key if any(key) else None,
        item_ids=run.packed_ids(index, index + 1),
        flow=head.flow,
        action=head.action,
        priority=head.priority if change.priority is None else change.priority,
        due_ms=first_due_ms(head, change, now_ms),
        enqueued_ms=head.enqueued_ms,
        attempt=head.attempt,
        headers=head.headers(),
    )
    errors = sighting.errors
    if change.error is not None:
        errors = remember(errors, ItemError(sighting.attempt, now_ms, change.error))
    return NewRow(
        new_run_id(),
        read_head(data),
        data,
        1,
        sighting.attempt,
        due_ms,
        errors,
        is_dead=change.error is not None,
        changed_ms=now_ms,
    )


def first_due_ms(head: RunHead, change: Change, now_ms: int) -> int:
    """The due time in the item's header: when it is first due. Postponing the item keeps it; an
    item that is wanted earlier than it was ever due gets the earlier time."""
    if change.due_ms is None:
        return head.due_ms
    wanted_ms = change.due_ms or now_ms
    return wanted_ms if wanted_ms < (head.due_ms or head.enqueued_ms) else head.due_ms
