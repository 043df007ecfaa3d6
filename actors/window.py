"""What is in flight: on one connection (`Window`), and on all of them together (`Budget`).

A request is in flight from the moment its head is read until it is answered. A connection with
nothing in flight may always have one frame, whatever the limits say: no frame waits forever, and
the price is that the budget may be overdrawn by one frame a connection.
"""

import trio


class Budget:
    """The bytes that may be in flight on all connections together."""

    __slots__ = ("_starved", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._starved: list[trio.Event] = []

    def wake_at_release(self, event: trio.Event) -> None:
        self._starved.append(event)

    def wake(self) -> None:
        """Whoever waits looks again; called once for many releases."""
        if self._starved:
            for event in self._starved:
                event.set()
            self._starved = []


class Window:
    """The requests of one connection that are in flight. Those that are not yet handed over to
    somebody who will answer them are given back by `drop_in_hand`."""

    __slots__ = ("_budget", "_bytes", "_bytes_max", "_frames_max", "_in_hand", "_sizes")

    def __init__(self, frames_max: int, bytes_max: int, budget: Budget) -> None:
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._budget = budget
        self._sizes: dict[int, int] = {}
        """By sequence number."""
        self._bytes = 0
        self._in_hand: int | None = None

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
        """The request is in flight, and in the connection's own hands."""
        self._sizes[sequence] = size
        self._bytes += size
        self._budget.taken += size
        self._in_hand = sequence

    def hand_over(self) -> None:
        """Somebody else will answer the request in hand."""
        self._in_hand = None

    def release(self, sequence: int) -> None:
        """The request is answered."""
        size = self._sizes.pop(sequence)
        self._bytes -= size
        self._budget.taken -= size
        if sequence == self._in_hand:
            self._in_hand = None

    def drop_in_hand(self) -> None:
        """Lets go of a request that nobody will answer."""
        if self._in_hand is not None:
            self.release(self._in_hand)
