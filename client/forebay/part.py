"""A part of a run, as a run of its own: some of its items, which keep their ids."""

from collections.abc import Callable, Iterator, Sequence

from forebay.encode import encode_run
from forebay.run import KEYS, Run


def take_items(run: Run, indexes: Sequence[int], payloads: Sequence[bytes] | None = None) -> bytes:
    """A run with a new id of the items with these indexes; `payloads` take the place of theirs.

    Everything else stays: ids, keys, times, attempt, headers. Beside unpacking the body it is work
    for these items alone. Raises BadRun if the run cannot be unpacked or the new one would be no
    run (no items, too long, another number of payloads), and IndexError for an item that the run
    does not have.
    """
    head = run.head
    for index in (min(indexes, default=0), max(indexes, default=0)):
        if not 0 <= index < head.count:
            raise IndexError(f"no item {index} in a run of {head.count}")
    stretches = list(_stretches(indexes))

    def pick(values: Callable[[int, int], list[bytes]]) -> list[bytes]:
        # For 1,500 of 4,096 items, each on its own: 2.2 ms by way of all, 4.2 one by one.
        if 4 * len(stretches) > head.count:
            of_all = values(0, head.count)
            return [of_all[index] for index in indexes]
        return [value for first, last in stretches for value in values(first, last)]

    if payloads is None:
        payloads = pick(run.payloads)
    keys = pick(run.keys) if head.flags & KEYS else []
    return encode_run(
        payloads,
        queue=head.queue,
        keys=keys if any(keys) else None,
        item_ids=pick(run.packed_ids),
        flow=head.flow,
        action=head.action,
        priority=head.priority,
        due_ms=head.due_ms,
        enqueued_ms=head.enqueued_ms,
        attempt=head.attempt,
        headers=head.headers(),
    )


def _stretches(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Indexes that follow each other, as (first, last), the last one exclusive."""
    first = last = -1
    for index in indexes:
        if index != last:
            if last >= 0:
                yield first, last
            first = index
        last = index + 1
    if last >= 0:
        yield first, last
