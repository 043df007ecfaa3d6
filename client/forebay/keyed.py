"""The outcomes of items with keys (docs/protocol.md, "Keyed queues"), for both ends.

The ACK of a push to a keyed queue is the byte `DECIDED` and one outcome byte per item of the run,
in order. A run of one item may name in a header the item that it should replace. Whatever the
input, readers raise BadFrame or BadRun and nothing else.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from forebay.errors import BadFrame, BadRun
from forebay.head import RunHead
from forebay.ids import parse_item_id
from forebay.wire import Buffer, Kind, frame

DECIDED: Final = 2
"""The first byte of an ACK with one outcome per item; see `wire.Outcome` for the others."""
ONLY_IF_HEADER: Final = "forebay-only-if"
"""The header of a run of one item: the id of the item to replace, which must hold the key."""
_ONLY_IF_HEADER: Final = ONLY_IF_HEADER.encode()


class KeyOutcome(IntEnum):
    """The outcome of one item that was pushed to a keyed queue."""

    CREATED = 0
    """It is stored: its key was free, or it has no key."""
    UPDATED = 1
    """It is stored, and the item that held the key before it is deleted."""
    IGNORED = 2
    """The key is taken, or the item that holds it waits for the same time and says the same;
    nothing was stored."""
    CONFLICT = 3
    """The key is taken, and the queue rejects a second item or the item that holds the key cannot
    be replaced any more; nothing was stored."""


_BYTES: Final = bytes(KeyOutcome)
_KNOWN: Final = list(KeyOutcome)


def decided(sequence: int, outcomes: bytes) -> bytes:
    """The ACK of a keyed push."""
    return frame(Kind.ACK, sequence, bytes((DECIDED,)) + outcomes)


def is_decided(body: Buffer) -> bool:
    """Whether an ACK has outcomes for items."""
    return len(body) > 1 and body[0] == DECIDED


def read_decided(body: Buffer, items: int) -> bytes:
    """The outcomes in the ACK of a run with `items` items, one byte per item."""
    outcomes = bytes(body[1:])
    if not is_decided(body) or len(outcomes) != items or outcomes.strip(_BYTES):
        raise BadFrame("an ACK has no known outcome for each item")
    return outcomes


def read_outcomes(outcomes: bytes) -> list[KeyOutcome]:
    return [_KNOWN[outcome] for outcome in outcomes]


def count_outcomes(outcomes: bytes) -> Sequence[int]:
    """How many items have each outcome, in the order of `KeyOutcome`."""
    return [outcomes.count(outcome) for outcome in _BYTES]


def only_if(head: RunHead) -> tuple[bytes, int] | None:
    """Run id and index of the item that a run should replace, if its headers name one. BadRun if
    the name is not a valid item id, or if the run has more than one item."""
    if _ONLY_IF_HEADER not in head.packed_headers:
        return None
    text = head.headers().get(ONLY_IF_HEADER)
    if text is None:
        return None
    if head.count != 1:
        raise BadRun(f"a run with the header {ONLY_IF_HEADER} has one item, not {head.count}")
    try:
        return parse_item_id(text)
    except ValueError as problem:
        raise BadRun(f"the header {ONLY_IF_HEADER}: {problem}") from None
