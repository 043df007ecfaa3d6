"""Follower: carries out in this journal what the cold store has decided about writes.

Asks the store every FOLLOW_S, when another daemon wakes it, and once before anything is routed,
what was decided about writes that are open in this journal or that this daemon has not called
applied; has the spooler carry it out (actors/spooler/staging.py); and tells the store that it is
applied. So it finishes what a daemon began that was killed after the decision, and a daemon that
was away finds what others have decided.

Once a minute it tells the store how long it has heard nothing of each open write. Writes that no
daemon has heard of for `stage_ttl` are dropped.

Owns nothing. A decision is durable in the journal before it is called applied; whatever is not, is
asked for again, also after a cancel. While the store is away nothing is followed and nothing
expires.
"""

from typing import Final

import structlog
import trio

from actors.model.clock import Clock
from actors.ports.writes import VERDICTS_MAX, Decisions, Unheard, Verdict
from actors.spooler.client import SpoolerClient
from actors.spooler.messages import Apply, AskOpenWrites
from actors.writes.attempts import attempt, repeat
from actors.writes.parts import Parts
from forebay.errors import Refused

log = structlog.get_logger()

FOLLOW_S: Final = 3.0
EXPIRE_S: Final = 60.0
EXPIRE_S_MIN: Final = 1.0


class Follower:
    def __init__(
        self,
        spooler: SpoolerClient,
        decisions: Decisions,
        parts: Parts,
        stage_ttl_s: float,
        now_ms: Clock,
    ) -> None:
        self._spooler = spooler
        self._decisions = decisions
        self._parts = parts
        self._ttl_ms = round(stage_ttl_s * 1000)
        self._expire_s = min(EXPIRE_S, max(EXPIRE_S_MIN, stage_ttl_s / 4))
        self._now_ms = now_ms
        self._woken = trio.Event()
        self._running = trio.CancelScope()

    def wake(self) -> None:
        """Something is decided that this journal may not have carried out."""
        self._woken.set()

    async def catch_up(self) -> None:
        """Before the daemon serves: what was decided while it was away."""
        await attempt("follow", self.follow)

    async def run(self) -> None:
        """Returns after `close`."""
        with self._running:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow_on)
                nursery.start_soon(repeat, "expire", self.expire, self._expire_s)

    def close(self) -> None:
        self._running.cancel()

    async def _follow_on(self) -> None:
        while True:
            with trio.move_on_after(FOLLOW_S):
                await self._woken.wait()
            self._woken = trio.Event()
            await attempt("follow", self.follow)

    # Steps. Each may be taken at any time, by any task.

    async def apply(self, verdict: Verdict) -> None:
        """Carries a decision out; durable on return. Raises Refused if the journal's disk fails.
        The store is told with the next look at it."""
        self._note(verdict, await self._spooler.ask(Apply(verdict)))

    async def follow(self) -> None:
        """Carries out all that is decided and not called applied."""
        while True:
            here = await self._spooler.ask(AskOpenWrites())
            verdicts = await self._decisions.verdicts([entry.write for entry in here])
            answers = await self._spooler.ask_all([Apply(verdict) for verdict in verdicts])
            applied: list[bytes] = []
            for verdict, missing in zip(verdicts, answers, strict=True):
                # A full disk: it comes again.
                if not isinstance(missing, Refused):
                    self._note(verdict, missing)
                    applied.append(verdict.write)
            if applied:
                await self._decisions.applied(applied)
            if len(verdicts) < VERDICTS_MAX or not applied:
                return

    def _note(self, verdict: Verdict, missing: int) -> None:
        if missing:
            log.error("decisions.items_missing", write=verdict.write.hex(), items=missing)
        if verdict.items:
            self._parts.expect(verdict.write)

    async def expire(self) -> None:
        """Drops writes that no daemon has heard of for `stage_ttl`."""
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
