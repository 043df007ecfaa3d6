"""What is in flight: on one connection (`Window`), and on all of them together (`Budget`).

A request is in flight from the moment its head is read until it is answered. A connection's window
counts what its requests announce: it can only hold up itself. The budget counts memory in use:
requests that have arrived, and the part of each inbox beyond its free share.

Nothing waits forever. A connection with nothing in flight may always have one frame. If that frame
needs a larger inbox than the budget allows, one connection at a time may overdraw it (`allows`),
until its frame has arrived.
"""

from typing import Final

import trio

from actors.config.settings import stored_run_bytes_max
from actors.model.refusals import too_large
from forebay import wire
from forebay.errors import BadFrame, Refused
from forebay.limits import (
    CONTROL_BYTES_MAX,
    EXTEND_BYTES_MAX,
    FETCH_BYTES_MAX,
    FRAME_BODY_BYTES_MAX,
    HELLO_BYTES_MAX,
    LEASE_BYTES_MAX,
    PING_BYTES_MAX,
    SETTLE_BYTES_MAX,
    STAGE_HEAD_BYTES,
)
from forebay.wire import FrameHead, Kind


class Budget:
    """The bytes that may be in flight on all connections together."""

    __slots__ = ("_guest", "_starved", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._guest: object = None
        """The connection that may overdraw it."""
        self._starved: list[trio.Event] = []

    @property
    def is_short(self) -> bool:
        """Whether a connection waits for a part of it."""
        return bool(self._starved)

    def allows(self, who: object, size: int) -> bool:
        """Whether `who` may take that much now. Lets one at a time overdraw it, until that one
        calls `leave`: so frames become whole one after the other, however many have begun.
        """
        if self.taken + size <= self.limit:
            return True
        if self._guest is None:
            self._guest = who
        return self._guest is who

    def leave(self, who: object) -> None:
        if self._guest is who:
            self._guest = None

    def wake_at_release(self, event: trio.Event) -> None:
        self._starved.append(event)

    def wake(self) -> None:
        """Makes all waiters look again; called once for many releases."""
        if self._starved:
            for event in self._starved:
                event.set()
            self._starved = []


class Window:
    """The requests of one connection that are in flight. `drop_in_hand` releases a request that is
    not handed over to another actor yet."""

    __slots__ = (
        "_arriving",
        "_budget",
        "_bytes",
        "_bytes_max",
        "_frames_max",
        "_in_hand",
        "_sizes",
    )

    def __init__(self, frames_max: int, bytes_max: int, budget: Budget) -> None:
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._budget = budget
        self._sizes: dict[int, int] = {}
        """Sizes by sequence number."""
        self._bytes = 0
        self._in_hand: int | None = None
        self._arriving: int | None = None
        """The request that has only partly arrived: it is in its inbox, and counted there."""

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sizes

    def has_room(self, size: int) -> bool:
        if not self._sizes:
            return True
        return (
            len(self._sizes) < self._frames_max
            and self._bytes + size <= self._bytes_max
            and self._budget.taken + size <= self._budget.limit
        )

    def admit(self, sequence: int, size: int) -> None:
        """The request is in flight, held by the connection, and still arriving."""
        self._sizes[sequence] = size
        self._bytes += size
        self._in_hand = self._arriving = sequence

    def arrived(self) -> None:
        """The request that was admitted last is whole."""
        if self._arriving is not None:
            self._budget.taken += self._sizes[self._arriving]
            self._arriving = None

    def hand_over(self) -> None:
        """Another actor will answer the request that the connection holds."""
        self._in_hand = None

    def release(self, sequence: int) -> None:
        """The request is answered."""
        size = self._sizes.pop(sequence)
        self._bytes -= size
        if sequence == self._arriving:
            self._arriving = None
        else:
            self._budget.taken -= size
        if sequence == self._in_hand:
            self._in_hand = None

    def drop_in_hand(self) -> None:
        """Releases a request that will not be answered."""
        if self._in_hand is not None:
            self.release(self._in_hand)


# Checks a frame before its body is read. Pure decisions.
#
# An invalid frame ends the connection: the position in the stream is lost, or the client does not
# speak the protocol. A frame that is only too large is skipped and refused.

_SENSIBLE_BYTES_MAX: Final = {
    Kind.HELLO: HELLO_BYTES_MAX,
    Kind.PUSH: FRAME_BODY_BYTES_MAX,
    Kind.STAGE: STAGE_HEAD_BYTES + FRAME_BODY_BYTES_MAX,
    Kind.PING: PING_BYTES_MAX,
    Kind.STATS: 0,
    Kind.GOODBYE: 0,
    Kind.LEASE: FRAME_BODY_BYTES_MAX,
    Kind.SETTLE: FRAME_BODY_BYTES_MAX,
    Kind.EXTEND: FRAME_BODY_BYTES_MAX,
    Kind.CONTROL: FRAME_BODY_BYTES_MAX,
    Kind.FETCH: FRAME_BODY_BYTES_MAX,
}
_TAKEN_BYTES_MAX: Final = {
    Kind.LEASE: LEASE_BYTES_MAX,
    Kind.SETTLE: SETTLE_BYTES_MAX,
    Kind.EXTEND: EXTEND_BYTES_MAX,
    Kind.CONTROL: CONTROL_BYTES_MAX,
    Kind.FETCH: FETCH_BYTES_MAX,
}


def check(head: FrameHead, *, is_greeted: bool, in_flight: Window) -> None:
    """Raises BadFrame if a client cannot mean this frame."""
    kind, sequence, body_bytes = head
    bytes_max = _SENSIBLE_BYTES_MAX.get(kind)
    if bytes_max is None:
        raise BadFrame(f"{kind.name} is the daemon's to send")
    if body_bytes > bytes_max:
        raise BadFrame(f"a {kind.name} of {body_bytes} bytes: at most {bytes_max} are allowed")
    if (kind is Kind.HELLO) is is_greeted:
        raise BadFrame("a second HELLO" if is_greeted else f"{kind.name} comes before HELLO")
    if (sequence == wire.CONNECTION) is is_greeted:
        raise BadFrame(f"a {kind.name} with the sequence number {sequence}")
    if sequence in in_flight:
        raise BadFrame(f"the sequence number {sequence} is still in flight")


def refuse_size(head: FrameHead, max_run_bytes: int) -> Refused | None:
    """The refusal of a frame that is too large, if it is."""
    if head.kind in (Kind.PUSH, Kind.STAGE):
        head_bytes = STAGE_HEAD_BYTES if head.kind is Kind.STAGE else 0
        is_larger = head.body_bytes - head_bytes > stored_run_bytes_max(max_run_bytes)
        return too_large(max_run_bytes) if is_larger else None
    taken_max = _TAKEN_BYTES_MAX.get(head.kind, head.body_bytes)
    return too_large(taken_max) if head.body_bytes > taken_max else None
