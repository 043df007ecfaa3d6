"""A part of a run, as a run of its own: some of its items, which keep their ids."""

from collections.abc import Sequence

from forebay.encode import encode_run
from forebay.run import Run


def take_items(run: Run, indexes: Sequence[int], payloads: Sequence[bytes] | None = None) -> bytes:
    """A run with a new id of the items with these indexes; `payloads` take the place of theirs.

    Everything else stays: ids, keys, times, attempt, headers. Raises BadRun if the run cannot be
    unpacked or the new one would be no run (no items, too long, another number of payloads), and
    IndexError for an item that the run does not have.
    """
    head = run.head
    for index in indexes:
        if not 0 <= index < head.count:
            raise IndexError(f"no item {index} in a run of {head.count}")
    if payloads is None:
        all_payloads = run.payloads()
        payloads = [all_payloads[index] for index in indexes]
    all_keys = run.keys()
    keys = [all_keys[index] for index in indexes]
    ids = run.packed_ids()
    return encode_run(
        payloads,
        queue=head.queue,
        keys=keys if any(keys) else None,
        item_ids=[ids[index] for index in indexes],
        flow=head.flow,
        action=head.action,
        priority=head.priority,
        due_ms=head.due_ms,
        enqueued_ms=head.enqueued_ms,
        attempt=head.attempt,
        headers=head.headers(),
    )
