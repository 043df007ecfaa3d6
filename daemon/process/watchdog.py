"""Feeds systemd's watchdog, but only while the daemon makes progress.

Twice per WATCHDOG_USEC it checks for progress, and sends WATCHDOG=1 if there is some. Running is
not enough: the watchdog must also catch an event loop that turns while the spooler waits for a disk
forever. After a check without an answer the next one follows at once, so that WATCHDOG=1 is sent as
soon as the daemon makes progress again.

Owns nothing. Without WATCHDOG_USEC `run` returns at once. On cancel it stops feeding. During a
drain it continues; systemd stops expecting WATCHDOG=1 after STOPPING=1.

What it cannot do: tell a dead disk from one that needs longer than WatchdogSec for a sync. Both
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
        """`check` returns whether there is progress; it is cancelled if it takes too long.

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
    """A check that makes a report, which goes through the cold store's thread and the spooler's
    inbox, loop and commit."""

    async def check() -> bool:
        # A spooler that has sealed the journal cannot get stuck any more.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, StoreUnavailable):
            await report()
        return True

    return check
