"""Claims and receipts of the cold tier's model, as plain as the rest of it."""

from dataclasses import dataclass, field

from actors.model.books import ColdReceipt
from actors.ports.tiers import SeenRow, Stream
from tests.conformance.cold_model import ColdModel, Now, Row, find_due

Consumer = tuple[str, str]


@dataclass
class Reader:
    acknowledged: int = 0
    rows: list[Row] | None = None
    """Of the open claim."""


@dataclass
class StreamModel:
    model: ColdModel
    readers: dict[Consumer, Reader] = field(default_factory=dict)

    def claim(self, who: Consumer, after: int, items_max: int, now: Now) -> Stream | None:
        """None: `after` is wrong."""
        reader = self.readers.get(who, Reader())
        if after - reader.acknowledged not in ({0} if reader.rows is None else {0, 1}):
            return None
        self.readers[who] = reader
        for row in self.model.of("queued", who[0]):
            find_due(row, now)
        if reader.rows is not None and after > reader.acknowledged:
            for row in reader.rows:
                self.model.deliver(row, row.bits)
                del self.model.rows[row.new.row]
            reader.acknowledged, reader.rows = after, None
        if reader.rows is None and items_max:
            reader.rows = self._freeze(who[0], items_max, now) or None
        return self.stream(who)

    def _freeze(self, queue: str, items_max: int, now: Now) -> list[Row]:
        taken: list[Row] = []
        for row in sorted(self.model.due(queue, now, frozenset()), key=lambda row: row.sort_key):
            if taken and row.items > items_max:
                break
            items_max -= row.items
            row.state, row.lock, row.at_ms = "claimed", None, 0
            taken.append(row)
        return taken

    def drop(self, who: Consumer) -> int:
        rows = self.readers.pop(who, Reader()).rows or []
        for row in rows:
            row.state = "queued"
        return sum(row.items for row in rows)

    def stream(self, who: Consumer) -> Stream:
        reader, queue = self.readers.get(who, Reader()), who[0]
        waiting = sum(row.items for row in self.model.of("queued", queue))
        taken = self.model.taken.get(queue, 0)
        if reader.rows is None:
            return Stream(reader.acknowledged, waiting=waiting, taken=taken)
        items = sum(row.items for row in reader.rows)
        size = sum(len(row.new.data) for row in reader.rows)
        number = reader.acknowledged + 1
        return Stream(reader.acknowledged, number, len(reader.rows), items, size, waiting, taken)

    def receipt(self, write: bytes) -> ColdReceipt:
        dead = [row for row in self.model.rows.values() if row.state == "dead"]
        return ColdReceipt(
            self.model.delivered_of.get(write, 0),
            sum(row.items for row in dead if row.write == write),
            self.model.deleted_of.get(write, 0),
        )


def seen_of(number: int, row: Row) -> SeenRow:
    is_whole = row.bits == (1 << row.new.head.count) - 1
    return SeenRow(number, row.due_ms, row.attempt, 0 if is_whole else row.bits, row.new.data)
