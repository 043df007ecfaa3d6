"""Batches for handlers, and what became of their items."""

from collections.abc import Mapping, Sequence
from typing import Any

from actors.config.queue import QueueSettings
from actors.model.outcomes import Failure, Report
from actors.model.slices import InJournal, LentRun, Slice, indexes
from actors.ports.handler import Handler, NoPace
from daemon.handlers import open_handler
from forebay.run import encode_run, read_head

HANG_S = 60
"""Nothing is measured by it: what hangs should fail the test."""


def opened(handler: Mapping[str, Any], queue: str = "crm") -> Handler:
    settings = QueueSettings.model_validate({"handler": dict(handler)})
    opened_handler = open_handler(queue, settings)
    assert opened_handler is not None
    return opened_handler


def slice_of(
    payloads: Sequence[bytes], *, bits: int | None = None, attempt: int = 0, **run: Any
) -> Slice:
    data = encode_run(list(payloads), queue="crm", **run)
    lent = LentRun(read_head(data), data, InJournal(token=1, position=0))
    return Slice(lent, (1 << len(payloads)) - 1 if bits is None else bits, attempt)


def damaged_slice() -> Slice:
    """A run that passed the door and cannot be unpacked."""
    data = bytearray(encode_run([b"abc"], queue="crm", compressed=False))
    data[-7:-3] = (9).to_bytes(4, "little")
    return Slice(LentRun(read_head(bytes(data)), bytes(data), InJournal(1, 0)), 1)


async def deliver(handler: Handler, *batch: Slice) -> Report:
    """One send, by a sender of its own."""
    sender = handler.open_sender(NoPace())
    try:
        return await sender.send(handler.prepare(batch))
    finally:
        await sender.aclose()


def failures(report: Report) -> dict[tuple[int, int], Failure]:
    """The failed items by slice and index; each may be named once."""
    found: dict[tuple[int, int], Failure] = {}
    for failed in report.failures:
        for index in indexes(failed.bits):
            assert (failed.order, index) not in found
            found[failed.order, index] = failed.failure
    return found


def texts(report: Report) -> dict[tuple[int, int], str]:
    return {place: failure.text for place, failure in failures(report).items()}
