"""Feeds systemd's watchdog, but only while the daemon makes progress.

Twice in each WATCHDOG_USEC it asks for progress, and says WATCHDOG=1 when the answer is yes. A
process that merely runs feeds nothing: an event loop that turns while the spooler waits for a
disk forever is what the watchdog is for. After a question without an answer the next one follows
at once, so that the daemon is fed as soon as it gets on.

Owns nothing. Without WATCHDOG_USEC `run` returns at once. Cancelled, it stops feeding. On drain
it goes on: systemd itself stops waiting for WATCHDOG=1 when it is told STOPPING=1.

What it can't do: tell a dead disk from one that needs longer than WatchdogSec for a sync. Both
end in a restart, which loses nothing that was acknowledged.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import structlog
import trio

from actors.ports.tiers import StoreUnavailable
from daemon.process.systemd import notify, watchdog_s

log = structlog.get_logger()

ASK_AFTER: Final = 1 / 2
ANSWER_WITHIN: Final = 1 / 4
"""Shares of WATCHDOG_USEC. The first late answer is in the log before systemd acts on it."""

assert ASK_AFTER + ANSWER_WITHIN < 1


class Watchdog:
    def __init__(self, check: Callable[[], Awaitable[bool]], period_s: float | None = None) -> None:
        """`check` says whether there is progress; it may take long, and is cancelled then.

        `period_s` is WATCHDOG_USEC in seconds, from the environment if it is not given.
        """
        self._check = check
        self._period_s = watchdog_s() if period_s is None else period_s
        self._is_stuck = False

    async def run(self) -> None:
        if self._period_s is None:
            return
        while True:
            asked_at = trio.current_time()
            is_alive = False
            with trio.move_on_after(self._period_s * ANSWER_WITHIN):
                is_alive = await self._check()
            if is_alive:
                notify("WATCHDOG=1")
            self._tell(is_alive)
            share = ASK_AFTER if is_alive else ANSWER_WITHIN
            await trio.sleep_until(asked_at + self._period_s * share)

    def _tell(self, is_alive: bool) -> None:
        """One line at each change."""
        if is_alive and self._is_stuck:
            log.info("watchdog.progress_again")
        if not is_alive and not self._is_stuck:
            log.error("watchdog.no_progress", restart_within_s=self._period_s)
        self._is_stuck = not is_alive


def answers(report: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[bool]]:
    """A check: whether a report can be made. It goes through the cold store's thread, the spooler's
    inbox, its loop and its commit."""

    async def check() -> bool:
        # A spooler that has sealed the journal has nothing left to get stuck in.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, StoreUnavailable):
            await report()
        return True

    return check
