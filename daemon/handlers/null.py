"""The null handler: discards items and reports them as delivered. For measurements and drills.

It unpacks nothing, so runs that cannot be unpacked count as delivered too.
"""

from collections.abc import Sequence
from typing import Final

import trio

from actors.model.outcomes import Report
from actors.model.slices import Slice
from actors.ports.handler import Pace, Prepared
from forebay.limits import RUN_ITEMS_MAX

BATCH_BYTES: Final = 64 * 1024 * 1024


class NullDelivery:
    destination = "null"
    batch_items = 16 * RUN_ITEMS_MAX
    batch_bytes = BATCH_BYTES
    timeout_s = 1.0

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        return Prepared(batch, None)

    def open_sender(self, pace: Pace) -> "NullSender":
        return NullSender()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class NullSender:
    async def send(self, prepared: Prepared) -> Report:
        await trio.lowlevel.checkpoint()
        return Report(prepared.rejected)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
