"""Recalls: items that another daemon has in line for warm, and that a newer one is to replace.

A row that a daemon has acquired is in that daemon's memory until it is in warm: only that daemon
can say whether its items still wait. Who wants them asks it, through the cold store that both
share, and waits for its answer `RECALL_S` at most. The holder gives back what it has not lent to
anybody (actors/keys/take_back.py), and answers; whatever it says, the store knows then which items
wait and which have started.

Owns whom it need not ask: a daemon that has not answered is left alone for `SILENT_S`, since each
question holds the pushes up that it is for. Durable when: nothing of it need be. A question that
nobody hears, or an answer that comes too late, is a conflict as before. On cancel, questions are
left behind, and forgotten by whoever asks next.

What it can't do: recall anything without the wakes of the cold store (`cold.listen_url` behind a
pooler): nobody looks for questions by the clock.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from actors.ports.tiers import StoreCorrupt, StoreUnavailable

log = structlog.get_logger()

RECALL_S: Final = 1.0
SILENT_S: Final = 30.0
LOOK_S: Final = 0.1
"""A wake may be missed: so often an answer is looked for."""
RECALLED: Final = "!recalled"
"""What a wake says that is about recalls: no queue has this name."""

GiveBack = Callable[[str, Mapping[bytes, int]], Awaitable[object]]


class RecallQuestion(NamedTuple):
    number: int
    holder: bytes


class Recall(NamedTuple):
    """A question to this daemon: items by their run, as bits."""

    number: int
    queue: str
    wanted: Mapping[bytes, int]


class Recalls(Protocol):
    """Every method raises StoreUnavailable as those of a `ColdQueue` do."""

    async def ask(
        self, queue: str, wanted: Mapping[bytes, int], silent: Collection[bytes]
    ) -> list[RecallQuestion]:
        """Asks whoever holds these rows, but for this daemon and for those that are silent."""

    async def unanswered(self, numbers: Collection[int]) -> set[int]:
        """Which of these nobody has answered yet."""

    async def asked(self) -> list[Recall]:
        """What this daemon is asked for, and has not answered."""

    async def answer(self, numbers: Collection[int]) -> None:
        """What could be given back is back."""

    async def forget(self, numbers: Collection[int]) -> None:
        """These, and all that are old."""


class Recalling:
    def __init__(self, recalls: Recalls) -> None:
        self._recalls = recalls
        self._woken = trio.Event()
        self._silent: dict[bytes, float] = {}
        """Until when a daemon is not asked."""

    def wake(self, said: str) -> None:
        """Another daemon has asked, or answered."""
        if said == RECALLED:
            self._woken.set()
            self._woken = trio.Event()

    async def recall(self, queue: str, wanted: Mapping[bytes, int]) -> None:
        """Returns when all have answered that could, or the time is over."""
        now = trio.current_time()
        self._silent = {daemon: until for daemon, until in self._silent.items() if until > now}
        asked = await self._recalls.ask(queue, wanted, self._silent)
        if not asked:
            return
        open_ones = {question.number for question in asked}
        try:
            with trio.move_on_after(RECALL_S):
                while open_ones:
                    woken = self._woken
                    open_ones = await self._recalls.unanswered(open_ones)
                    if open_ones:
                        with trio.move_on_after(LOOK_S):
                            await woken.wait()
        finally:
            self._silent |= {
                question.holder: trio.current_time() + SILENT_S
                for question in asked
                if question.number in open_ones
            }
            with trio.CancelScope(shield=True), suppress(StoreUnavailable):
                await self._recalls.forget([question.number for question in asked])

    async def run(self, give_back: GiveBack) -> None:
        """Answers what this daemon is asked for; never returns. `give_back` takes items from this
        daemon's line and warm queue to the cold store."""
        while True:
            woken = self._woken
            try:
                await self.answer(give_back)
            except StoreUnavailable:
                # The next wake repeats it.
                pass
            except StoreCorrupt as problem:
                log.error("recalls.store_corrupt", error=str(problem))
            await woken.wait()

    async def answer(self, give_back: GiveBack) -> None:
        """All that is asked now, a queue at a time: whoever asks for many items waits no longer
        than for one."""
        while recalls := await self._recalls.asked():
            for queue in {recall.queue: None for recall in recalls}:
                asked = [recall for recall in recalls if recall.queue == queue]
                wanted: dict[bytes, int] = {}
                for recall in asked:
                    for run_id, bits in recall.wanted.items():
                        wanted[run_id] = wanted.get(run_id, 0) | bits
                await give_back(queue, wanted)
                await self._recalls.answer([recall.number for recall in asked])
