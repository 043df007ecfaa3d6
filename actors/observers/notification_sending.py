"""One channel of a notification: gives its notices to one receiver, one after the other.

It owns a bounded line of notices. A notice that is not accepted is retried after 1, 5 and 25 s, or
when the receiver asks for it; then it is given up and counted, as is a notice that finds the line
full. The log says when a channel begins to fail and when it works again.

After `close` waiting notices are still sent, and `run` returns. On cancel they are lost. It cannot
know whether a receiver that did not answer has accepted a notice: the notice's id is for that.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from actors.observers.notices import Notice

log = structlog.get_logger()

PAUSES_S: Final = (1.0, 5.0, 25.0)
PAUSE_S_MAX: Final = 60.0
"""The longest pause that a receiver can ask for."""


class NotSent(Exception):
    """The text says why a notice was not accepted."""

    def __init__(self, text: str, *, is_final: bool = False, pause_s: float = 0.0) -> None:
        super().__init__(text)
        self.is_final = is_final
        """A retry would fail as well."""
        self.pause_s = pause_s
        """The pause that the receiver asks for."""


@dataclass(slots=True)
class Counts:
    """Counts of one channel of one notification."""

    sent: int = 0
    failed: int = 0


class Sender:
    """One channel: gives notices to one receiver, in order."""

    def __init__(
        self,
        notification: str,
        way: str,
        give: Callable[[Notice], Awaitable[None]],
        failed: Callable[[Notice, str], None],
        counts: Counts,
        line_max: int,
    ) -> None:
        self._names = {"notification": notification, "way": way}
        self._give = give
        self._failed = failed
        self._counts = counts
        self._is_failing = False
        self._line, self._inbox = trio.open_memory_channel[Notice](line_max)

    def offer(self, notice: Notice) -> None:
        try:
            self._line.send_nowait(notice)
        except trio.WouldBlock:
            self._give_up(notice, "too many notices wait to be sent")

    def close(self) -> None:
        """Accepts no more notices; waiting ones are still sent."""
        self._line.close()

    async def run(self) -> None:
        async for notice in self._inbox:
            await self._send(notice)

    async def _send(self, notice: Notice) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                await self._give(notice)
            except NotSent as problem:
                if problem.is_final or pause_s is None:
                    self._give_up(notice, str(problem))
                    return
                await trio.sleep(max(pause_s, min(problem.pause_s, PAUSE_S_MAX)))
            else:
                self._counts.sent += 1
                if self._is_failing:
                    log.info("notifications.sent_again", **self._names)
                self._is_failing = False
                return

    def _give_up(self, notice: Notice, why: str) -> None:
        self._counts.failed += 1
        if not self._is_failing:
            log.error("notifications.not_sent", **self._names, error=why)
        self._is_failing = True
        self._failed(notice, why)
