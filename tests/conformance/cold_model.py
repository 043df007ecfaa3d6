"""The cold tier as a few lists in memory: what every implementation must agree with.

It is slow and plain on purpose: no index, no counter; everything is worked out from the rows.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from actors.model.slices import SortKey, lowest_bit
from actors.ports.tiers import ColdTotals, DeadFilter, FlowCount, NewRow, Outlook, RowOutcome
from forebay.limits import TIME_MS_MAX
from forebay.run import Run, read_head, take_items

K = TypeVar("K")


class Now(NamedTuple):
    """A moment, on the wall clock and on the clock of leases."""

    wall: int
    steady: int


@dataclass
class Row:
    new: NewRow
    bits: int
    attempt: int
    due_ms: int
    at_ms: int
    """Due then, by the wall clock; 0: it is due, whatever becomes of the clock."""
    state: str = "stored"
    lock: bytes | None = None
    until_ms: int = 0
    """The end of its lease, where it has a lock, by the clock of leases."""
    edits: int = 0
    """Which edit made its body; 0: none."""
    retried_ms: int = TIME_MS_MAX
    """When it was retried: it was due at first by then."""

    @property
    def items(self) -> int:
        return self.bits.bit_count()

    @property
    def body(self) -> bytes | int:
        """What tells its body from others; the store makes a run id of its own for an edit."""
        return self.edits or self.new.head.run_id

    @property
    def sort_key(self) -> SortKey:
        head = self.new.head
        # An edit makes a run id that sorts after all that were there before.
        run_id = b"\xff" * 8 + self.edits.to_bytes(8, "big") if self.edits else head.run_id
        first_ms = min(head.due_ms or head.enqueued_ms, self.retried_ms)
        return (head.priority, first_ms, run_id, lowest_bit(self.bits))

    @property
    def write(self) -> bytes | None:
        text = self.new.head.headers().get("forebay-write")
        return None if text is None else bytes.fromhex(text)

    @property
    def died_ms(self) -> int:
        return self.new.errors[-1].at_ms

    @property
    def item_id(self) -> str:
        index = lowest_bit(self.bits)
        return Run(self.new.head, self.new.data).item_ids(index, index + 1)[0]


@dataclass
class ColdModel:
    rows: dict[bytes, Row] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    delivered_of: dict[bytes | None, int] = field(default_factory=dict)
    deleted_of: dict[bytes | None, int] = field(default_factory=dict)
    """The same by write."""
    edits: int = 0

    def store(self, new_rows: list[NewRow]) -> None:
        for new in new_rows:
            self.rows.setdefault(new.row, Row(new, new.bits, new.attempt, new.due_ms, new.due_ms))

    def confirm(self, ids: list[bytes], now: Now) -> None:
        for row in self._in_state("stored", ids):
            row.state = "dead" if row.new.is_dead else "queued"
            find_due(row, now)
            _add(self.taken, row.new.head.queue, row.items)

    def unconfirmed(self) -> list[tuple[bytes, int]]:
        return sorted((row.new.row, row.items) for row in self._in_state("stored"))

    def forget(self, ids: list[bytes]) -> None:
        for row in self._in_state("stored", ids):
            del self.rows[row.new.row]

    def acquire(
        self, queue: str, lock: bytes, items_max: int, bytes_max: int, lease_ms: int,
        now: Now, except_flows: frozenset[str],
    ) -> list[Row]:  # fmt: skip
        for row in self.of("queued", queue):
            find_due(row, now)
        taken: list[Row] = []
        bodies: set[bytes | int] = set()
        for row in sorted(self.due(queue, now, except_flows), key=lambda row: row.sort_key):
            size = 1 if row.body in bodies else 1 + len(row.new.data)
            if taken and (row.items > items_max or size > bytes_max):
                break
            items_max -= row.items
            bytes_max -= size
            bodies.add(row.body)
            taken.append(row)
        for row in taken:
            row.lock, row.until_ms = lock, now.steady + lease_ms
        return taken

    def renew(self, locks: list[bytes], lease_ms: int, now: Now) -> list[int]:
        counts = []
        for lock in locks:
            rows = [row for row in self._in_state("queued") if row.lock == lock]
            for row in rows:
                row.until_ms = now.steady + lease_ms
            counts.append(len(rows))
        return counts

    def release(self, lock: bytes, ids: list[bytes]) -> None:
        for row in self._in_state("queued", ids):
            if row.lock == lock:
                row.lock, row.at_ms = None, 0

    def settle(self, outcome: RowOutcome, now: Now) -> bool:
        row = self.rows.get(outcome.row)
        if row is None or row.state != "queued" or row.lock != outcome.lock:
            return False
        moving = row.bits & outcome.moved_bits
        if moving and moving != outcome.moved_bits:
            return False
        delivered = row.bits & outcome.delivered & ~outcome.moved_bits
        self.deliver(row, delivered)
        row.bits &= ~(delivered | moving)
        if not row.bits:
            del self.rows[outcome.row]
        if moving:
            self.store(list(outcome.moved))
            for new in outcome.moved:
                self.rows[new.row].state = "dead" if new.is_dead else "queued"
                self.rows[new.row].edits = row.edits
                find_due(self.rows[new.row], now)
        return True

    def deliver(self, row: Row, bits: int) -> None:
        _add(self.delivered, row.new.head.queue, bits.bit_count())
        _add(self.delivered_of, row.write, bits.bit_count())

    def outlook(self, queue: str, now: Now, except_flows: frozenset[str]) -> Outlook:
        later = [
            now.wall + _due_in_ms(row, now)
            for row in self.of("queued", queue)
            if row.new.head.flow not in except_flows and _due_in_ms(row, now) > 0
        ]
        return Outlook(bool(self.due(queue, now, except_flows)), min(later, default=None))

    def totals(self) -> dict[str, ColdTotals]:
        return {
            queue: ColdTotals(
                taken=taken,
                delivered=self.delivered.get(queue, 0),
                deleted=self.deleted.get(queue, 0),
                dead=sum(row.items for row in self.of("dead", queue)),
                held=sum(row.items for row in self._held(queue)),
                runs=len(self._held(queue)),
            )
            for queue, taken in self.taken.items()
        }

    def flows(self) -> list[FlowCount]:
        counts: dict[tuple[str, str, str], list[int]] = {}
        for row in self.rows.values():
            if row.state != "stored":
                head = row.new.head
                count = counts.setdefault((head.queue, head.flow, head.action), [0, 0])
                count[row.state == "dead"] += row.items
        return sorted(FlowCount(*place, *count) for place, count in counts.items())

    def bodies(self) -> int:
        """How many bodies are needed."""
        return len({row.body for row in self.rows.values()})

    def find(self, which: DeadFilter) -> list[Row]:
        def matches(row: Row) -> bool:
            head, error = row.new.head, row.new.errors[-1].text
            return (
                which.queue in (None, head.queue)
                and which.flow in (None, head.flow)
                and (which.error or "").casefold() in error.casefold()
                and (which.died_before_ms is None or row.died_ms < which.died_before_ms)
                and (not which.ids or row.item_id in which.ids)
            )

        dead = filter(matches, self._in_state("dead"))
        return sorted(dead, key=lambda row: (row.died_ms, row.new.row))

    def retry(self, rows: list[Row], now: Now) -> None:
        for row in rows:
            row.retried_ms = min(row.retried_ms, now.wall)
            row.state, row.attempt, row.due_ms, row.at_ms, row.lock = "queued", 0, 0, 0, None

    def remove(self, rows: list[Row]) -> None:
        for row in rows:
            del self.rows[row.new.row]
            _add(self.deleted, row.new.head.queue, 1)
            _add(self.deleted_of, row.write, 1)

    def edit(self, item_id: str, payload: bytes) -> bool:
        rows = [row for row in self._in_state("dead") if row.item_id == item_id]
        for row in rows:
            self.edits += 1
            run = Run(row.new.head, row.new.data)
            data = take_items(run, [lowest_bit(row.bits)], [payload])
            row.new = replace(row.new, head=read_head(data), data=data)
            row.bits, row.edits = 1, self.edits
        return bool(rows)

    def due(self, queue: str, now: Now, except_flows: frozenset[str]) -> list[Row]:
        return [
            row
            for row in self.of("queued", queue)
            if _due_in_ms(row, now) <= 0 and row.new.head.flow not in except_flows
        ]

    def _held(self, queue: str) -> list[Row]:
        return self.of("queued", queue) + self.of("claimed", queue)

    def of(self, state: str, queue: str) -> list[Row]:
        return [row for row in self._in_state(state) if row.new.head.queue == queue]

    def _in_state(self, state: str, ids: list[bytes] | None = None) -> list[Row]:
        """The rows in a state, or those of them that are named, once each."""
        names = list(self.rows) if ids is None else dict.fromkeys(ids)
        return [self.rows[name] for name in names if name in self.rows
                and self.rows[name].state == state]  # fmt: skip


def _due_in_ms(row: Row, now: Now) -> int:
    return row.at_ms - now.wall if row.lock is None else row.until_ms - now.steady


def find_due(row: Row, now: Now) -> None:
    """What was found due once stays due, though the wall clock is set back."""
    if row.at_ms <= now.wall:
        row.at_ms = 0


def _add(counts: dict[K, int], key: K, items: int) -> None:
    counts[key] = counts.get(key, 0) + items
