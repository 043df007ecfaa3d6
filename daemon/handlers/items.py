"""Unpacks a batch: items for Python functions, columns for Parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.model.slices import Slice, indexes, lowest_bit
from actors.ports.handler import DeliveryFailed, Prepared
from daemon.handlers.unpacked import UnpackedRuns
from forebay.errors import BadRun
from forebay.head import RunHead
from forebay.item import Item

# Turns the verdicts on single items into the report on a batch.

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


@dataclass(frozen=True, slots=True, eq=False)
class SliceColumns:
    """The items of a slice: shared fields, and columns with a value per item."""

    head: RunHead
    headers: dict[str, str]
    attempt: int
    ids: list[str]
    keys: list[str | None]
    payloads: list[bytes]

    def items(self) -> list[Item]:
        head = self.head
        return [
            Item(
                id=item_id,
                queue=head.queue,
                key=key,
                payload=payload,
                priority=head.priority,
                flow=head.flow,
                action=head.action,
                attempt=self.attempt,
                headers=self.headers,
                enqueued_ms=head.enqueued_ms,
            )
            for item_id, key, payload in zip(self.ids, self.keys, self.payloads, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class BatchColumns:
    """The slices that could be unpacked."""

    slices: list[SliceColumns]
    places: list[tuple[int, int]]
    """For each item: its slice's number in the batch, and its index in its run."""
    rejected: tuple[ItemsFailed, ...] = ()
    """The items that could not be unpacked."""

    def items(self) -> list[Item]:
        return [item for part in self.slices for item in part.items()]


def unpack_batch(batch: Sequence[Slice], unpacked: UnpackedRuns) -> BatchColumns:
    """The items of a batch, in order. An invalid run is reported, not raised."""
    slices: list[SliceColumns] = []
    places: list[tuple[int, int]] = []
    rejected: list[ItemsFailed] = []
    for order, part in enumerate(batch):
        try:
            slices.append(_unpack(part, unpacked))
        except (BadRun, IndexError) as problem:
            failure = Failure(
                f"cannot be unpacked: {problem}", is_permanent=True, blames_destination=False
            )
            rejected.append(ItemsFailed(order, part.bits, failure))
            continue
        places += zip(repeat(order), indexes(part.bits))
    return BatchColumns(slices, places, tuple(rejected))


def _unpack(part: Slice, unpacked: UnpackedRuns) -> SliceColumns:
    run = unpacked.run_of(part)
    first, last = lowest_bit(part.bits), part.bits.bit_length()
    ids = run.item_ids(first, last)
    keys = [key.decode(errors="replace") or None for key in run.keys(first, last)]
    payloads = run.payloads(first, last)
    if part.items < last - first:
        chosen = [index - first for index in indexes(part.bits)]
        ids = [ids[at] for at in chosen]
        keys = [keys[at] for at in chosen]
        payloads = [payloads[at] for at in chosen]
    return SliceColumns(run.head, run.head.headers(), part.attempt, ids, keys, payloads)
