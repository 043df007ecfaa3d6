"""What this daemon has in the shared warm queue: which of its runs, and in what state.

The journal's runs with all that must be known to enter them again; of rows of the cold store only
their ids, since that store has the rest. Kept by whoever enters, leases and hears of outcomes.
Plain data, bounded by what the shared queue takes.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from actors.model.slices import InCold, InJournal, LentRun, Slice


@dataclass(slots=True, eq=False)
class _Out:
    run: LentRun
    parts: list[Slice]

    def bits_until(self, attempt: int) -> int:
        """The items of which no more attempts are known."""
        bits = 0
        for part in self.parts:
            if part.attempt <= attempt:
                bits |= part.bits
        return bits

    def cut(self, bits: int) -> None:
        """These items are no longer there."""
        self.parts = [part for part in (shrunk(part, ~bits) for part in self.parts) if part]


class LentOut:
    def __init__(self) -> None:
        self._runs: dict[str, dict[int, _Out]] = {}
        self._rows: dict[str, dict[bytes, set[bytes]]] = {}

    # The journal's.

    def add(self, queue: str, slices: Iterable[Slice]) -> None:
        """They are there, or may be."""
        for slice_ in slices:
            match slice_.run.owner:
                case InJournal(position=position):
                    known = self._runs.setdefault(queue, {}).get(position)
                    if known is None:
                        known = self._runs[queue][position] = _Out(slice_.run, [])
                    known.cut(slice_.bits)
                    known.parts.append(slice_)
                case InCold(row=row, lock=lock):
                    self._rows.setdefault(queue, {}).setdefault(lock, set()).add(row)

    def gone(self, queue: str, slice_: Slice, stays: Sequence[Slice] = ()) -> None:
        """A slice is no longer there, but for what stays. Rows of the cold store are forgotten by
        their locks alone."""
        owner = slice_.run.owner
        if not isinstance(owner, InJournal):
            return
        known = self._runs.get(queue, {}).get(owner.position)
        if known is None:
            return
        known.cut(slice_.bits)
        known.parts += (Slice(known.run, s.bits, s.attempt, s.due_ms, s.errors) for s in stays)
        if not known.parts:
            del self._runs[queue][owner.position]
            if not self._runs[queue]:
                del self._runs[queue]

    def current(self, queue: str, position: int, attempt: int) -> int:
        """The items of a run that are there and have not been tried more often than that. Of
        other hosts one hears late: the rest has been leased again since then, and moved on."""
        known = self._runs.get(queue, {}).get(position)
        return 0 if known is None else known.bits_until(attempt)

    def run_at(self, queue: str, position: int, run_id: bytes) -> LentRun | None:
        known = self._runs.get(queue, {}).get(position)
        return known.run if known is not None and known.run.head.run_id == run_id else None

    def own(self, queue: str, slice_: Slice) -> Slice | None:
        """A slice that was leased, as one of this life's: only items that are known to be out.
        None: none of them is."""
        owner = slice_.run.owner
        assert isinstance(owner, InJournal)
        known = self._runs.get(queue, {}).get(owner.position)
        if known is None or known.run.head.run_id != slice_.run.head.run_id:
            return None
        out = 0
        for part in known.parts:
            out |= part.bits
        mine = shrunk(slice_, out)
        return mine and Slice(known.run, mine.bits, mine.attempt, mine.due_ms, mine.errors)

    def slices(self, queue: str) -> list[Slice]:
        """All that the journal has there, in order."""
        parts = [part for known in self._runs.get(queue, {}).values() for part in known.parts]
        return sorted(parts, key=lambda part: part.sort_key)

    def items_out(self, queue: str) -> int:
        return sum(part.items for part in self.slices(queue))

    def bytes_out(self, queue: str) -> int:
        return sum(part.bytes for part in self.slices(queue))

    def positions(self, queue: str) -> dict[int, int]:
        """Which items of which runs are out: bits, by position."""
        found: dict[int, int] = {}
        for position, known in self._runs.get(queue, {}).items():
            found[position] = 0
            for part in known.parts:
                found[position] |= part.bits
        return found

    @property
    def queues(self) -> list[str]:
        """Those with runs of the journal."""
        return list(self._runs)

    # The cold store's.

    def rows(self) -> list[tuple[str, bytes, list[bytes]]]:
        """Queue, lock and rows."""
        return [
            (queue, lock, list(rows))
            for queue, locks in self._rows.items()
            for lock, rows in locks.items()
        ]

    def locks(self, queue: str) -> list[bytes]:
        return list(self._rows.get(queue, {}))

    @property
    def row_queues(self) -> list[str]:
        return list(self._rows)

    def rows_of(self, queue: str) -> set[tuple[bytes, bytes]]:
        """Row and lock of each."""
        return {(row, lock) for lock, rows in self._rows.get(queue, {}).items() for row in rows}

    def forget_rows(self, queue: str, lock: bytes, rows: Collection[bytes]) -> None:
        """These are not there any more."""
        left = self._rows.get(queue, {}).get(lock)
        if left is not None:
            left -= set(rows)
            if not left:
                self.forget_locks([lock])

    def forget_locks(self, locks: Collection[bytes]) -> None:
        """Nothing is acquired under these any more."""
        for queue in list(self._rows):
            for lock in locks:
                self._rows[queue].pop(lock, None)
            if not self._rows[queue]:
                del self._rows[queue]


def shrunk(slice_: Slice, bits: int) -> Slice | None:
    """The items of a slice that are among these."""
    left = slice_.bits & bits
    if not left:
        return None
    if left == slice_.bits:
        return slice_
    return Slice(slice_.run, left, slice_.attempt, slice_.due_ms, slice_.errors)
