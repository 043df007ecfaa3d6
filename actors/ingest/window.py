"""What is in flight: on one connection (`Window`), and on all of them together (`Budget`).

A request is in flight from the moment its head is read until it is answered. A connection's window
counts what its requests announce: it can only hold up itself. The budget counts memory in use:
requests that have arrived, and the part of each inbox beyond its free share.

Nothing waits forever. A connection with nothing in flight may always have one frame. If that frame
needs a larger inbox than the budget allows, one connection at a time may overdraw it (`allows`),
until its frame has arrived.
"""

import trio


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
