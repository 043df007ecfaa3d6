"""The keyed intake: pushes to queues with unique keys, which go to the cold store first.

It receives `OfferRun` from the connections. All pushes that wait during one transaction share the
next one, which decides on each item (actors/model/keys.py). A push is durable before it is
answered, in the transaction that makes its items visible. Then workers and consumers that wait for
the queue are woken; they lease its items from the cold store (actors/tiers/fetch.py).

It also forgets keys that are free again, some at a time.

While the cold store is away pushes are refused with UNAVAILABLE, and while the disk is nearly full
with DISK_FULL, because only the cold store knows whether a key is taken. It runs until it is
cancelled, after ingest has drained, so that every accepted push is answered. On cancel the
transaction under way is completed; a client without an answer sends the same run again and gets the
same decision.

It cannot bound a queue: only the disk bounds what is pushed here, so `full_policy` does not apply.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.keys import ItemRef, Offer
from actors.model.refusals import other_content, unavailable
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from actors.spooler.intake import QUEUES_MAX, fingerprint
from actors.spooler.messages import OfferRun
from actors.tiers.tiers import Tiers
from forebay.errors import BadRun, Refused
from forebay.keyed import KeyOutcome, count_outcomes, decided, only_if
from forebay.run import KEYS, Run
from forebay.stage_frames import WRITE_HEADER, write_of

WAITING_MAX: Final = 1024
"""Pushes that may wait for the next transaction; beyond it connections wait."""
GROUP_RUNS_MAX: Final = 256
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one transaction, which other pushes wait for."""
FORGET_S: Final = 10.0
DISK_RETRY_MS: Final = 1000


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A push that may be stored."""

    push: OfferRun
    offer: Offer


class KeyedIntake:
    def __init__(self, tiers: Tiers) -> None:
        self.offers, self._inbox = trio.open_memory_channel[OfferRun](WAITING_MAX)
        self._tiers = tiers
        self._cold = tiers.cold
        self._recent = tiers.spooler.recent
        """The runs pushed here and to the journal."""
        self._known: set[str] = set()
        """Queues that dispatch has been told about."""
        self._counts: Counter[KeyOutcome] = Counter()

    def figures(self) -> dict[str, int]:
        """Outcomes of items since the start."""
        return {outcome.name.lower(): self._counts[outcome] for outcome in KeyOutcome}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forget)
            task_status.started()
            async for push in self._inbox:
                await self._store(self._group(push))
            nursery.cancel_scope.cancel()

    def _group(self, first: OfferRun) -> list[OfferRun]:
        """This push, and those that have arrived meanwhile."""
        group, size = [first], len(first.data)
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while len(group) < GROUP_RUNS_MAX and size < GROUP_BYTES_MAX:
                push = self._inbox.receive_nowait()
                group.append(push)
                size += len(push.data)
        return group

    async def _store(self, group: Sequence[OfferRun]) -> None:
        if self._tiers.spooler.disk_is_low:
            text = "the disk is nearly full"
            refuse(group, Refused("DISK_FULL", text, retry_after_ms=DISK_RETRY_MS))
            return
        allowed = [push for push in group if self._is_allowed(push)]
        candidates = [found for push in allowed if (found := read(push)) is not None]
        if not candidates:
            return
        try:
            # Cancelling here would leave stored pushes without an answer.
            with trio.CancelScope(shield=True):
                answers = await self._cold.offer([each.offer for each in candidates])
        except (StoreUnavailable, StoreCorrupt) as problem:
            refuse((each.push for each in candidates), unavailable(problem))
            return
        except Exception as problem:
            if len(candidates) > 1:
                # The transaction was undone. Only the push that caused the error must fail.
                for each in candidates:
                    await self._store([each.push])
            else:
                refuse([candidates[0].push], INTERNAL_ERRORS.note(problem, "PUSH"))
            return
        pushes = [each.push for each in candidates]
        for push, outcomes in zip(pushes, answers, strict=True):
            if not outcomes:
                push.answers.refuse(push.sequence, other_content(push.head.run_id))
                continue
            self._recent.add(push.head.run_id, fingerprint(push.head, push.data))
            push.answers.answer(push.sequence, decided(push.sequence, outcomes))
            for outcome, items in zip(KeyOutcome, count_outcomes(outcomes), strict=True):
                self._counts[outcome] += items
        flush(pushes)
        for queue in {push.head.queue for push in pushes}:
            await self._tell(queue)

    def _is_allowed(self, push: OfferRun) -> bool:
        """Queue names are kept in memory, so their number is bounded."""
        queue = push.head.queue
        if self._recent.is_another(push.head, push.data):
            refuse([push], other_content(push.head.run_id))
            return False
        if queue in self._known or len(self._known) < QUEUES_MAX:
            return True
        refuse([push], Refused("UNKNOWN_QUEUE", f"there are too many queues to create {queue!r}"))
        return False

    async def _tell(self, queue: str) -> None:
        if queue not in self._known:
            self._known.add(queue)
            # While draining there is no receiver; after the restart the books name the queue.
            with suppress(trio.BrokenResourceError):
                await self._tiers.spooler.arrivals.see(queue)
        self._tiers.wake(queue)

    async def _forget(self) -> None:
        while True:
            await trio.sleep(FORGET_S)
            # Failures are logged where they matter, and tried again.
            with suppress(StoreUnavailable, StoreCorrupt):
                while await self._cold.forget_keys():
                    await trio.lowlevel.checkpoint()


def read(push: OfferRun) -> _Candidate | None:
    """A push whose keys can be read; others are refused, and None is returned."""
    try:
        if write_of(push.head) is not None:
            # The write's receipt would count items that were never published.
            raise BadRun(f"a run with the header {WRITE_HEADER} is staged, not pushed")
        named = only_if(push.head)
        run = Run(push.head, push.data)
        if push.head.flags & KEYS:
            run.keys()
        run.packed_ids(0, 1)
    except BadRun as problem:
        refuse([push], Refused("BAD_RUN", str(problem)))
        return None
    except Exception as problem:
        refuse([push], INTERNAL_ERRORS.note(problem, "PUSH"))
        return None
    return _Candidate(push, Offer(run, None if named is None else ItemRef(*named)))


def refuse(pushes: Iterable[OfferRun], refused: Refused) -> None:
    pushes = list(pushes)
    for push in pushes:
        push.answers.refuse(push.sequence, refused)
    flush(pushes)


def flush(pushes: Iterable[OfferRun]) -> None:
    """Lets each connection send once."""
    for answers in {id(push.answers): push.answers for push in pushes}.values():
        answers.flush()
