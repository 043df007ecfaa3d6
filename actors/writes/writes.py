"""Writes: what clients ask about the writes of Spark jobs (docs/protocol.md, "STAGE, SEAL, ...").

    client ──► 1. the journal: is it all there, what is known? a seal or drop is synced
               2. the cold store decides: one transaction
               3. the journal carries the decision out: synced
       ◄────── 4. answered

This is the door of the package. A request is answered when the decision is durable in the cold
store and, as far as it concerns this daemon, in the journal too: from then on the journal alone
knows what is visible, whatever happens to the cold store. Other daemons that have stages of the
write follow (actors/writes/follower.py), and so does this one if it ends between the second step
and the third.

While the cold store is away nothing is decided: requests raise StoreUnavailable, and may be
repeated. What is staged waits, and everything else goes on. On cancel a request may still be
carried out.
"""

import trio

from actors.model.clock import Clock
from actors.ports.writes import (
    DECIDED,
    Aborted,
    Decisions,
    Published,
    PublishWish,
    Receipt,
    Verdict,
    WriteView,
)
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import AskParts, AskReceipt, AskWrite, DropStage, Seal
from actors.writes.follower import Follower
from actors.writes.parts import Parts

DECISION_STEPS = ("verdicts", "applied", "note_parts", "expire", "unfinished")
"""What is asked of the store without a client: when one fails, the store is away."""


class Writes:
    def __init__(
        self,
        spooler: SpoolerClient,
        decisions: Decisions,
        stage_ttl_s: float,
        now_ms: Clock,
        *,
        is_shared: bool,
    ) -> None:
        """`is_shared`: other daemons use the same cold store, and may have stages of a write."""
        self._spooler = spooler
        self._decisions = decisions
        self._is_shared = is_shared
        self._parts = Parts(spooler, decisions)
        self._follower = Follower(spooler, decisions, self._parts, stage_ttl_s, now_ms)

    # Life.

    def hear(self, said: str) -> None:
        """Another daemon's wake, which may be that something is decided."""
        if said == DECIDED:
            self._follower.wake()

    async def catch_up(self) -> None:
        """Carries out what was decided and not carried out; before anything is routed."""
        await self._follower.catch_up()

    async def run(self) -> None:
        """Returns after `close`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            if self._is_shared:
                nursery.start_soon(self._parts.run)

    async def close(self) -> None:
        """Nothing is delivered any more. Tells the others the last outcomes, while the spooler is
        there."""
        self._follower.close()
        if self._is_shared:
            await self._parts.close()

    # Requests. Refused: nothing is changed, unless the journal says that its disk failed.

    async def seal(self, write: bytes, stage: bytes, runs: int, items: int) -> None:
        sealed = await self._spooler.ask(Seal(write, stage, runs, items))
        if sealed is not None:
            await self._decisions.seal(write, sealed)

    async def drop(self, write: bytes, stage: bytes) -> int:
        """How many items."""
        items = await self._spooler.ask(DropStage(write, stage, also_sealed=False))
        if items is None and await self._decisions.drop(write, stage):
            items = await self._spooler.ask(DropStage(write, stage, also_sealed=True))
        return items or 0

    async def publish(
        self, write: bytes, stages: tuple[bytes, ...], app: str | None, version: int | None
    ) -> Published:
        here = await self._view(write, stages, app)
        decided = await self._decisions.publish(PublishWish(write, stages, app, version, here))
        if decided.verdict is not None:
            await self._follower.apply(decided.verdict)
        return decided.published

    async def abort(self, write: bytes) -> Aborted:
        here = await self._view(write)
        if here.phase == "published":
            known = await self._decisions.receipt(write)
            return Aborted("published", here.items if known is None else known.accepted)
        ended = await self._decisions.abort(write, here.items)
        if ended.outcome == "aborted":
            # Also if this journal has not heard of it: a straggler is refused.
            await self._follower.apply(Verdict(write, False, 0))
        else:
            self._follower.wake()
        return ended

    async def receipt(self, write: bytes) -> Receipt | None:
        known = await self._decisions.receipt(write)
        if known is None:
            # Published before this store was used, or before it was lost.
            return await self._spooler.ask(AskReceipt(write))
        # This journal's part as it is now, the others' as they told it last.
        found = await self._spooler.ask(AskParts((write,)))
        (own,) = found or (known.own,)
        return Receipt(
            write=write,
            published_ms=known.published_ms,
            app=known.app,
            version=known.version,
            queues=known.queues,
            accepted=known.accepted,
            delivered=own.delivered + known.others.delivered,
            dropped=own.dropped + known.others.dropped,
            deleted=own.deleted + known.others.deleted,
            lost=own.lost + known.others.lost,
        )

    async def forget(self, age_ms: int) -> None:
        """Forgets decisions that are this old, as far as every daemon has carried them out."""
        while await self._decisions.forget(age_ms):
            pass

    async def _view(
        self, write: bytes, stages: tuple[bytes, ...] = (), app: str | None = None
    ) -> WriteView:
        return await self._spooler.ask(AskWrite(write, stages, app))
