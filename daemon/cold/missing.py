"""Whether the cold store has what the journal has given it: a look at the books, at the start.

What the journal handed over, the cold store has taken, or its files are not those that it had: a
database was removed, set aside as damaged, or an old copy was brought back. Nothing can be done
about it here, and the items stay in the books as held; but somebody must know.
"""

import structlog
import trio

from actors.messages import Inquire, SpoolerMessage
from actors.tiers import ColdQueue

log = structlog.get_logger()


async def tell_what_is_missing(
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
    for queue, items in given.items():
        missing = items - (totals[queue].taken if queue in totals else 0)
        if missing > 0:
            log.error("cold.items_missing", queue=queue, items=missing)
