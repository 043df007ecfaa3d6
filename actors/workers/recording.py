"""Recordings: outcomes of consumers' leases on their way to the owners of the items.

A consumer is answered when the outcome of its lease is durable. The owners may take long: a store
that does not answer, a disk that takes nothing. So the consumer waits at most `RECORD_S` and may
repeat its report; the repeated one joins the first. Only then is the outcome known.

Nothing here is owned: an outcome is on its way whether or not anything waits for it. On cancel the
wait ends, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import trio

from actors.ports.tiers import Leased, StoreUnavailable
from actors.spooler.messages import Reply

RECORD_S: Final = 10.0

Key = tuple[str, int]
"""Queue and token of a consumer's lease."""


@dataclass(slots=True, eq=False)
class Recording:
    """The outcome of one lease."""

    leased: Leased
    is_held: bool = False
    """False: the lease was lost, and nothing is recorded."""
    noted: Reply[list[bool]] | None = None
    """Comes when the journal has the outcomes of the request on disk; None: nothing concerns it."""
    first: int = 0
    last: int = 0
    """Those from `first` to `last` (exclusive) are this lease's."""
    moved: Reply[bool] | None = None
    """Comes when the cold store has its part on disk; None: nothing concerns it. False: it has not
    taken it, because the lease had moved on or the failover had no room left."""

    def note(self, reply: Reply[list[bool]], first: int, last: int) -> None:
        """These outcomes of a message to the spooler are this lease's."""
        if last > first:
            self.noted, self.first, self.last = reply, first, last

    @property
    def is_over(self) -> bool:
        parts = (self.noted, self.moved)
        return all(part is None or part.has_come for part in parts)

    async def wait(self) -> bool:
        """Returns when all outcomes are durable. False: the lease was lost after all."""
        is_recorded = self.is_held
        if self.noted is not None:
            is_recorded &= all((await self.noted.wait())[self.first : self.last])
        if self.moved is not None:
            is_recorded &= await self.moved.wait()
        return is_recorded


class Recordings:
    """Those that are not over, so that a repeated report finds the first one."""

    def __init__(self) -> None:
        self._open: dict[Key, Recording] = {}

    def of(self, key: Key) -> Recording | None:
        return self._open.get(key)

    async def wait(self, recordings: Mapping[Key, Recording]) -> dict[Key, bool]:
        """Which outcomes count, once they are durable. StoreUnavailable: they may be, later."""
        answers: dict[Key, bool] = {}
        self._open |= recordings
        try:
            with trio.move_on_after(RECORD_S):
                for key, recording in recordings.items():
                    answers[key] = await recording.wait()
        finally:
            self.forget_over(recordings)
        if len(answers) < len(recordings):
            raise StoreUnavailable(f"the outcome is not known to be on disk after {RECORD_S:g} s")
        return answers

    def sweep(self) -> None:
        """Forgets recordings that nothing has waited for to the end."""
        self.forget_over(dict(self._open))

    def forget_over(self, recordings: Mapping[Key, Recording]) -> None:
        for key, recording in recordings.items():
            if recording.is_over:
                self._open.pop(key, None)
