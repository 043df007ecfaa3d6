"""Reading a queue as a stream (docs/protocol.md, "Claims"), and looking at what is in it.

    claim = client.claim("crm", "nightly", after=done)       # `done`: 0 at first
    at = 0
    while claim.number is not None and at is not None:
        fetched = client.fetch("crm", "nightly", claim.number, first=at)
        for row in fetched.rows: ...
        at = fetched.next

A claim is fixed and durable once it is made, and belongs to its consumer until a claim `after` it
acknowledges it. So any process can read it again after any crash. Claims do not expire. A reader
stores `claim.number` together with its results, and only then asks for more. Looking (`peek`)
changes nothing, and the items may be gone a moment later.
"""

from dataclasses import dataclass

from forebay.exchange import Exchange
from forebay.fetch_frames import (
    Fetched,
    FetchedRow,
    FetchWish,
    Finished,
    PastError,
    pack_fetch,
    unpack_fetched,
)
from forebay.limits import CLAIM_ITEMS_DEFAULT, FETCH_ROWS_MAX, FETCH_RUN_BYTES_DEFAULT
from forebay.wire import Kind, Members, number, number_or_none

__all__ = [
    "Claim",
    "Fetched",
    "FetchedRow",
    "Finished",
    "PastError",
    "StreamStatus",
    "Streams",
]


@dataclass(frozen=True, slots=True)
class Claim:
    """The items that a consumer may read now."""

    number: int | None
    """None: nothing was due."""
    rows: int
    items: int
    bytes: int
    """The size of its runs, as they are stored."""
    backlog: int
    """Items that wait and are not in the claim."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The position of a consumer."""

    acknowledged: int
    """The highest claim that it has acknowledged; 0: none."""
    claim: int | None
    """The open claim."""
    rows: int
    items: int
    bytes: int
    backlog: int


class Streams:
    """The part of a client that is about claims."""

    _exchange: Exchange

    def claim(
        self, queue: str, consumer: str, *, after: int, items: int = CLAIM_ITEMS_DEFAULT
    ) -> Claim:
        """Acknowledges the claim `after` and returns the next: the open one if there is one,
        otherwise a new one of at most `items` items. May be repeated. Refused with BAD_REQUEST if
        `after` is not this consumer's last claim."""
        members = {"queue": queue, "consumer": consumer, "after": after, "items": items}
        result = self._exchange.perform("streams.claim", members)
        return Claim(number_or_none(result, "claim"), *_sizes(result))

    def stream_status(self, queue: str, consumer: str) -> StreamStatus:
        members = {"queue": queue, "consumer": consumer}
        result = self._exchange.perform("streams.show", members)
        acknowledged = number(result, "acknowledged")
        return StreamStatus(acknowledged, number_or_none(result, "claim"), *_sizes(result))

    def stream_drop(self, queue: str, consumer: str) -> int:
        """Gives an open claim back and forgets the consumer; how many items were given back."""
        members = {"queue": queue, "consumer": consumer}
        return number(self._exchange.perform("streams.rm", members), "released")

    def fetch(
        self,
        queue: str,
        consumer: str,
        claim: int,
        *,
        first: int = 0,
        rows: int = FETCH_ROWS_MAX,
        bytes_max: int = FETCH_RUN_BYTES_DEFAULT,
    ) -> Fetched:
        """Rows of a claim from `first` on, as many as fit. Refused with NOT_FOUND if the claim is
        not open. Changes nothing, and returns the same rows each time."""
        wish = FetchWish(queue, consumer, claim, first=first, rows=rows, bytes=bytes_max)
        return self._fetch(wish)

    def peek(
        self,
        queue: str,
        state: str,
        *,
        cursor: str = "",
        rows: int = FETCH_ROWS_MAX,
        bytes_max: int = FETCH_RUN_BYTES_DEFAULT,
    ) -> Fetched:
        """Waiting items: `queued` (with the journal) or `cold` (in the cold store). Or `history`:
        finished items, newest first, each row with `finished`."""
        return self._fetch(FetchWish(queue, state=state, cursor=cursor, rows=rows, bytes=bytes_max))

    def _fetch(self, wish: FetchWish) -> Fetched:
        return unpack_fetched(self._exchange.ask(Kind.FETCH, pack_fetch(wish), insists=True))


def _sizes(result: Members) -> tuple[int, int, int, int]:
    rows, items, size = (number_or_none(result, name) or 0 for name in ("rows", "items", "bytes"))
    return rows, items, size, number(result, "backlog")
