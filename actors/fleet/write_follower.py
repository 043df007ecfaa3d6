"""Following decisions: what the daemons of a fleet have decided about writes becomes so here.

Receives wakes (somebody has decided something). Asks the shared store every few seconds, and once
before the daemon serves, what was decided about writes that are open in this journal; has the
spooler record it (actors/spooler/staging.py), exactly as if it had been decided here; and tells the
store that it is applied. A daemon that was away finds the decisions when it comes back.

Also tells the store, once a second, what has become here of the items of published writes, in
absolute numbers, so that repeating is harmless; and once a minute of which open writes it has heard
lately, so that those of which nobody has heard expire.

Durable when: a decision, before it is called applied. On cancel nothing is lost: whatever is not
marked is asked for again. While the store is away nothing is followed and nothing expires.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio

from actors.model.clock import Clock
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from actors.ports.writes import VERDICTS_MAX, Decisions, Unheard, Verdict, WritePart
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import AbortWrite, AskOpenWrites, AskParts, FollowPublish
from forebay.errors import Refused

log = structlog.get_logger()

FOLLOW_S: Final = 3.0
NOTE_S: Final = 1.0
EXPIRE_S: Final = 60.0
LAST_NOTE_S: Final = 5.0

Step = Callable[[], Awaitable[None]]


class Follower:
    def __init__(
        self,
        spooler: SpoolerClient,
        decisions: Decisions,
        stage_ttl_s: float,
        now_ms: Clock,
    ) -> None:
        self._spooler = spooler
        self._decisions = decisions
        self._ttl_ms = round(stage_ttl_s * 1000)
        self._expire_s = min(EXPIRE_S, max(NOTE_S, stage_ttl_s / 4))
        self._now_ms = now_ms
        self._woken = trio.Event()
        self._running = trio.CancelScope()
        self._unfinished: set[bytes] | None = None
        """Published writes of which this journal may hold items; None: not asked for yet."""
        self._noted: dict[bytes, WritePart] = {}
        """What the store knows of them."""
        self._moved: set[bytes] = set()
        """Published elsewhere: items of them were moved to this journal."""

    def wake(self) -> None:
        """Another daemon has decided something."""
        self._woken.set()

    async def catch_up(self) -> None:
        """Before the daemon serves: what was decided while it was away."""
        await self._try("follow", self.follow)

    async def run(self) -> None:
        """Returns after `close`."""
        with self._running:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_on)
                nursery.start_soon(self._repeat, "note parts", self.note_parts, NOTE_S)
                nursery.start_soon(self._repeat, "expire", self.expire, self._expire_s)

    async def close(self) -> None:
        """Nothing is delivered any more: the last word on it, while the spooler is there."""
        self._running.cancel()
        with trio.move_on_after(LAST_NOTE_S):
            await self._try("note parts", self.note_parts)

    async def _follow_on(self) -> None:
        while True:
            with trio.move_on_after(FOLLOW_S):
                await self._woken.wait()
            self._woken = trio.Event()
            await self._try("follow", self.follow)

    async def _repeat(self, name: str, step: Step, every_s: float) -> None:
        while True:
            await trio.sleep(every_s)
            await self._try(name, step)

    async def _try(self, name: str, step: Step) -> None:
        try:
            await step()
        except StoreUnavailable:
            # The next try repeats it.
            pass
        except StoreCorrupt as problem:
            log.error("decisions.store_corrupt", step=name, error=str(problem))

    # Steps. Each may be taken at any time, by anybody.

    async def follow(self) -> None:
        """Carries out all that is decided and not carried out here."""
        while True:
            here = await self._spooler.ask(AskOpenWrites())
            verdicts = await self._decisions.verdicts([entry.write for entry in here])
            applied = await self._apply(verdicts)
            if applied:
                await self._decisions.applied(applied)
            if len(verdicts) < VERDICTS_MAX or not applied:
                return

    async def _apply(self, verdicts: list[Verdict]) -> list[bytes]:
        """Those that are durable in the journal. The others (a full disk) come again."""
        answers: list[dict[str, Any] | Refused] = await self._spooler.ask_all(
            [carrying_out(verdict) for verdict in verdicts]
        )
        applied: list[bytes] = []
        for verdict, answer in zip(verdicts, answers, strict=True):
            if isinstance(answer, Refused):
                continue
            applied.append(verdict.write)
            if answer.get("missing"):
                log.error(
                    "decisions.items_missing", write=verdict.write.hex(), items=answer["missing"]
                )
            if verdict.items and self._unfinished is not None:
                self._unfinished.add(verdict.write)
        return applied

    async def note_parts(self) -> None:
        """Tells the store what has changed here of published writes."""
        if self._unfinished is None:
            self._unfinished = set(await self._decisions.unfinished())
        asked = tuple(self._unfinished)
        found = await self._spooler.ask(AskParts(asked, also_moved=True))
        # More of these may be moved here at any time: what was told of them is kept.
        self._moved = {part.write for part in found} - self._unfinished
        changed = [part for part in found if self._noted.get(part.write) != part]
        if changed:
            await self._decisions.note_parts(changed)
            self._noted.update((part.write, part) for part in changed)
        # What is not known here was on a disk that is gone: nobody can say more about it.
        over = set(asked) - {part.write for part in found if not part.is_over}
        self._unfinished -= over
        for write in self._noted.keys() - self._unfinished - self._moved:
            del self._noted[write]

    async def expire(self) -> None:
        """Drops writes of which no daemon has heard for `stage_ttl`."""
        now_ms = self._now_ms()
        here = await self._spooler.ask(AskOpenWrites())
        heard = [
            Unheard(entry.write, max(0, now_ms - entry.heard_ms), entry.is_kept) for entry in here
        ]
        gone = await self._decisions.expire(heard, self._ttl_ms)
        for write in gone:
            log.warning("decisions.write_expired", write=write.hex())
        if gone:
            await self.follow()


def carrying_out(verdict: Verdict) -> FollowPublish | AbortWrite:
    """The request that makes it so in this journal."""
    if verdict.is_published:
        return FollowPublish(verdict)
    return AbortWrite(verdict.write)
