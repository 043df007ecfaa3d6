"""The cold tier's books: what a transaction has changed, recorded once at its end.

For each queue `taken` + `accepted` = delivered + dead + deleted + lost + held, always: a row is
counted in the transaction that makes it visible, and every later change takes from one side what it
gives to another. Rows that cannot be read are set aside as corrupt, and their items are lost.

Items that belong to a write are counted in its receipt as well, from the moment in which the first
of them is taken until the receipt is forgotten.
"""

from collections import Counter, defaultdict
from typing import Final, NamedTuple

from actors.model.books import ColdReceipt
from actors.ports.tiers import ColdTotals

TOTALS: Final = (
    "taken",
    "delivered",
    "dead",
    "deleted",
    "held",
    "runs",
    "lost",
    "accepted",
    "duplicate",
)
FLOWS: Final = ("held", "runs", "dead")
RECEIPT: Final = ColdReceipt._fields


class Place(NamedTuple):
    """Counters are kept per place."""

    queue: str
    flow: str
    action: str


class Books:
    """The changes of one transaction."""

    def __init__(self) -> None:
        self.totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.flows: defaultdict[Place, Counter[str]] = defaultdict(Counter)
        self.receipts: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        self.writes_taken: set[bytes] = set()

    def begin(self, write: bytes) -> None:
        """Items of this write are counted in a receipt from now on."""
        self.writes_taken.add(write)

    def take(self, place: Place, items: int, write: bytes | None, *, is_dead: bool) -> None:
        """A row is the store's own from now on."""
        self.totals[place.queue]["taken"] += items
        if write is not None:
            self.writes_taken.add(write)
        self.enter(place, items, write, is_dead=is_dead)

    def accept(self, place: Place, items: int) -> None:
        """A row that came here first is visible from now on."""
        self.totals[place.queue]["accepted"] += items
        self.enter(place, items, None, is_dead=False)

    def pass_by(self, queue: str, items: int) -> None:
        """Items that came here first, and were replaced in the same step."""
        self.totals[queue]["accepted"] += items
        self.delete(queue, items, None)

    def repeat(self, queue: str, items: int) -> None:
        """A run that was answered before."""
        self.totals[queue]["duplicate"] += items

    def decide(self, write: bytes | None, updated: int, ignored: int, conflict: int) -> None:
        """What keys had to say of items that belong to a write."""
        for name, items in (("updated", updated), ("ignored", ignored), ("conflict", conflict)):
            self._note(write, name, items)

    def enter(self, place: Place, items: int, write: bytes | None, *, is_dead: bool) -> None:
        """A row of items that were counted before, in another row."""
        if is_dead:
            self._change(place, "dead", items)
            self._note(write, "dead", items)
        else:
            self._change(place, "held", items)
            self._change(place, "runs", 1)

    def cut(self, place: Place) -> None:
        """A row that is held has become two."""
        self._change(place, "runs", 1)

    def leave(self, place: Place, items: int, *, rows_gone: int) -> None:
        """Items of rows that are held are no longer in them."""
        self._change(place, "held", -items)
        self._change(place, "runs", -rows_gone)

    def leave_dead(self, place: Place, items: int, write: bytes | None) -> None:
        self._change(place, "dead", -items)
        self._note(write, "dead", -items)

    def deliver(self, queue: str, items: int, write: bytes | None) -> None:
        self.totals[queue]["delivered"] += items
        self._note(write, "delivered", items)

    def delete(self, queue: str, items: int, write: bytes | None) -> None:
        self.totals[queue]["deleted"] += items
        self._note(write, "deleted", items)

    def lose(self, place: Place, items: int, write: bytes | None) -> None:
        """A row that is held cannot be read, and is set aside."""
        self.leave(place, items, rows_gone=1)
        self.totals[place.queue]["lost"] += items
        self._note(write, "lost", items)

    def write_off(self, queue: str, items: int) -> None:
        """Items that were handed over, and are gone with the store that had them."""
        self.totals[queue]["taken"] += items
        self.totals[queue]["lost"] += items

    def carry_over(self, queue: str, totals: ColdTotals) -> None:
        """What a damaged database counted. Items that it held, dead letters too, are lost with
        it."""
        change = self.totals[queue]
        for name in ("taken", "accepted", "delivered", "deleted", "duplicate"):
            change[name] += getattr(totals, name)
        change["lost"] += totals.lost + totals.held + totals.dead

    def _note(self, write: bytes | None, name: str, by: int) -> None:
        if write is not None:
            self.receipts[write][name] += by

    def _change(self, place: Place, name: str, by: int) -> None:
        self.totals[place.queue][name] += by
        self.flows[place][name] += by
