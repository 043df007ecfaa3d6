"""Turns the verdicts on single items into the report on a batch."""

from collections.abc import Sequence

from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.ports.handler import DeliveryFailed, Prepared

Verdict = Failure | None
"""None: delivered."""


def report(
    prepared: Prepared, places: Sequence[tuple[int, int]], verdicts: Sequence[Verdict]
) -> Report:
    """The report on a batch, from a verdict per item that was sent."""
    failed: dict[tuple[int, Failure], int] = {}
    for (order, index), verdict in zip(places, verdicts, strict=True):
        if verdict is not None:
            failed[order, verdict] = failed.get((order, verdict), 0) | 1 << index
    return Report(
        prepared.rejected
        + tuple(ItemsFailed(order, bits, failure) for (order, failure), bits in failed.items())
    )


def all_failed(prepared: Prepared, places: Sequence[tuple[int, int]], failure: Failure) -> Report:
    """All items that were sent failed. Items rejected earlier keep their own reason."""
    if not prepared.rejected:
        raise DeliveryFailed(failure)
    return report(prepared, places, [failure] * len(places))
