"""Whether the cold store has what the journal has given it: a look at the books, at the start.

What the journal handed over, the cold store has taken, or its files are not those that it had. If
the database was damaged and set aside, the missing items are lost, and counted so. If it was
removed, replaced by an old copy, or another store is configured now, they stay in the books as held
and an error in the log says so: they may come back with the right files.
"""

import structlog
import trio

from actors.ports.tiers import ColdQueue
from actors.spooler.messages import Inquire, SpoolerMessage

log = structlog.get_logger()


async def account_for_missing(
    cold: ColdQueue, spooler: trio.MemorySendChannel[SpoolerMessage]
) -> None:
    """To be called when hand-overs of earlier lives are finished and none has begun."""
    totals = await cold.totals()
    given: dict[str, int] = {}
    there = trio.Event()

    def answer(report: dict[str, dict[str, dict[str, int]]]) -> None:
        given.update({name: entry["handed_over"] for name, entry in report["queues"].items()})
        there.set()

    await spooler.send(Inquire(answer))
    await there.wait()
    missing = {
        queue: items - (totals[queue].taken if queue in totals else 0)
        for queue, items in given.items()
    }
    missing = {queue: items for queue, items in missing.items() if items > 0}
    if missing:
        event = "cold.items_lost" if await cold.write_off(missing) else "cold.items_missing"
        for queue, items in missing.items():
            log.error(event, queue=queue, items=items)
