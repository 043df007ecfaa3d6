"""Deciding about writes in a fleet: requests to this daemon that concern stages of many.

Whatever a client asks for is first so in this daemon's journal, or is asked of it; then it is
decided in the store that the daemons share (actors/ports/writes.py); then this daemon carries out
its own part at once, and the others when they hear of it (actors/fleet/write_follower.py).

Answered when the decision is durable in the store. If the store is away the answer is that, and
the same request may be made again: nothing is decided by one daemon alone. Owns nothing.
"""

from contextlib import suppress
from typing import Any

from actors.fleet.write_follower import Follower
from actors.ports.tiers import StoreUnavailable
from actors.ports.writes import Decisions, Published, PublishWish, SealedStage, WriteView
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import AbortWrite, AskParts, AskWrite, DropStage, Seal
from forebay.errors import Refused


class Deciding:
    def __init__(self, spooler: SpoolerClient, decisions: Decisions, follower: Follower) -> None:
        self._spooler = spooler
        self._decisions = decisions
        self._follower = follower

    async def seal(self, write: bytes, stage: bytes, runs: int, items: int) -> dict[str, Any]:
        result = await self._spooler.ask(Seal(write, stage, runs, items))
        view = await self._view(write, (stage,))
        # Not there any more: it was decided meanwhile, and the store says how.
        (sealed,) = view.sealed or (SealedStage(stage, runs, items, ()),)
        await self._decisions.seal(write, sealed)
        return result

    async def drop(self, write: bytes, stage: bytes) -> dict[str, Any]:
        result = await self._spooler.ask(DropStage(write, stage, also_sealed=False))
        if not result.get("is_sealed"):
            return result
        if not await self._decisions.drop(write, stage):
            return {"write": write.hex(), "stage": stage.hex(), "items": 0}
        return await self._spooler.ask(DropStage(write, stage))

    async def publish(
        self, write: bytes, stages: tuple[bytes, ...], app: str | None, version: int | None
    ) -> dict[str, Any]:
        here = await self._view(write, stages, app)
        decided = await self._decisions.publish(PublishWish(write, stages, app, version, here))
        await self._carry_out()
        return described(decided.published)

    async def abort(self, write: bytes) -> dict[str, Any]:
        here = await self._view(write)
        if here.phase == "published":
            known = await self._decisions.receipt(write)
            return {"outcome": "published", "items": known.accepted if known else here.items}
        ended = await self._decisions.abort(write, here.items)
        if ended.outcome == "aborted":
            # Whether or not this journal had heard of it: a straggler is refused.
            with suppress(Refused):
                await self._spooler.ask(AbortWrite(write))
        await self._carry_out()
        return {"outcome": ended.outcome, "items": ended.items}

    async def receipt(self, write: bytes) -> dict[str, Any] | None:
        """What became of a write's items in all journals; None: it was not decided together."""
        known = await self._decisions.receipt(write)
        if known is None:
            return None
        # This journal's part as it is now, the others' as they told it last.
        found = await self._spooler.ask(AskParts((write,)))
        (own,) = found or (known.own,)
        return {
            "write": write.hex(),
            "published_ms": known.published_ms,
            "app": known.app,
            "version": known.version,
            "queues": list(known.queues),
            "accepted": known.accepted,
            "delivered": own.delivered + known.others.delivered,
            "dropped": own.dropped + known.others.dropped,
            "deleted": own.deleted + known.others.deleted,
            "lost": own.lost + known.others.lost,
        }

    async def forget(self, age_ms: int) -> None:
        await self._decisions.forget(age_ms)

    async def _view(
        self, write: bytes, stages: tuple[bytes, ...] = (), app: str | None = None
    ) -> WriteView:
        return await self._spooler.ask(AskWrite(write, stages, app))

    async def _carry_out(self) -> None:
        """It is decided: if it cannot be carried out now, it will be."""
        with suppress(StoreUnavailable):
            await self._follower.follow()


def described(published: Published) -> dict[str, Any]:
    return {
        "outcome": published.outcome,
        "write": None if published.write is None else published.write.hex(),
        "items": published.items,
        "published_ms": published.published_ms,
    }
