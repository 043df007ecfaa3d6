"""Logs failures: one line names one item, for all that failed with it, and the reason.

A line covers items of one run that failed alike: how many, the id of the first, the attempt, the
error, whose fault it was, which worker had them, and the run's correlation ids. `delivery.failed`:
they will be retried. `delivery.dead`: they are now dead letters. Deliveries are not logged.

It owns the budget of lines: `LINES` at once, and one more every `EVERY_S`, so that a destination
that refuses everything does not fill the disk. Suppressed items are counted per queue, and the next
line of that queue says how many they were (`more_items`). Called between awaits; does no I/O except
logging.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
import trio

from actors.model.correlation import correlated
from actors.model.slices import Slice, first_item_id
from actors.observers.batch import Batch
from forebay.ids import format_run_id

log = structlog.get_logger()

LINES: Final = 20
EVERY_S: Final = 0.5
UNPACK_BYTES_MAX: Final = 128 * 1024
"""A larger run is not unpacked for the id of one of its items: the line names the run instead."""
QUEUES_MAX: Final = 1000
"""For how many queues suppressed items are counted."""


class FailureLog:
    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._lines = float(LINES)
        self._at: float | None = None
        self._left_out: Counter[str] = Counter()

    def settled(self, batch: Batch) -> None:
        for leased, conclusion in batch.ours:
            for dead in conclusion.dead:
                self._say(batch.queue, dead, is_dead=True)
            for again in conclusion.again:
                if again.attempt > leased.slice.attempt:
                    self._say(batch.queue, again, is_dead=False)

    def _say(self, queue: str, failed: Slice, *, is_dead: bool) -> None:
        if not self._may_write():
            if queue in self._left_out or len(self._left_out) < QUEUES_MAX:
                self._left_out[queue] += failed.items
            return
        error = failed.errors[-1]
        fields = {
            "queue": queue,
            "items": failed.items,
            "item": name_of(failed),
            "attempt": failed.attempt,
            "error": error.text,
            "failure_reason": error.failure_reason,
            **({"locked_by": error.locked_by} if error.locked_by else {}),
            **correlated(failed.run.head),
        }
        more = self._left_out.pop(queue, 0)
        if more:
            fields["more_items"] = more
        if is_dead:
            log.warning("delivery.dead", **fields)
        else:
            log.info("delivery.failed", **fields, due_ms=failed.due_ms)

    def _may_write(self) -> bool:
        now = self._clock()
        if self._at is not None:
            self._lines = min(float(LINES), self._lines + (now - self._at) / EVERY_S)
        self._at = now
        if self._lines < 1:
            return False
        self._lines -= 1
        return True


def name_of(failed: Slice) -> str:
    """The id of its first item, or of its run if finding that would take long."""
    head = failed.run.head
    return (
        first_item_id(failed) if head.raw_bytes <= UNPACK_BYTES_MAX else format_run_id(head.run_id)
    )
