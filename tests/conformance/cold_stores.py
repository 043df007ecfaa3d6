"""What the suites of the cold tier need of an implementation, and how they make rows.

An implementation joins by writing a `ColdStores` for itself, a fixture `stores` that yields one,
opened and empty, and classes that inherit from the suites.
"""

import itertools
from typing import Any, Protocol

from actors.model.slices import ItemError, item_bits
from actors.ports.tiers import ColdQueue, ColdRow, DeadLetters, NewRow
from forebay.run import encode_run, read_head

START_MS = 1_750_000_000_000
LEASE_S = 60.0
PLENTY = 1 << 30

_numbers = itertools.count(1000)


class ColdStores(Protocol):
    """A store, its clocks, and ways to make its life hard."""

    @property
    def cold(self) -> ColdQueue: ...

    @property
    def dead(self) -> DeadLetters: ...

    def now_ms(self) -> int:
        """The wall clock, which stands still."""

    def steady_ms(self) -> int:
        """The clock of leases, which stands still too."""

    def advance(self, ms: int) -> None:
        """Time passes, on both clocks."""

    def step(self, ms: int) -> None:
        """The wall clock is set, forward or back. Nothing, if it is not this host's to set: the
        clock of leases is the same then."""

    async def reopen(self) -> None:
        """Closes the store in good order, and opens it again."""

    async def crash(self) -> None:
        """What a killed process leaves behind, opened again."""

    async def release_all(self) -> None:
        """What the next life does about leases of this one, where they are not the store's own."""

    async def damage_body(self, run_id: bytes) -> None:
        """Changes a byte in the middle of a stored body."""

    async def bodies(self) -> set[bytes]:
        """The ids of the bodies that are stored."""


def number() -> bytes:
    """16 bytes that were never used before; later ones sort later."""
    return next(_numbers).to_bytes(16, "big")


def new_row(items: int = 3, queue: str = "q", **given: Any) -> NewRow:
    """A row of a new run. What is given belongs to the row, or else to the run."""
    of_row: dict[str, Any] = {
        name: given.pop(name)
        for name in ("row", "bits", "attempt", "errors", "is_dead", "origin")
        if name in given
    }
    row_due_ms = given.pop("row_due_ms", 0)
    keys = given.pop("keys", None)
    payload = given.pop("payload", b"payload")
    fields: dict[str, Any] = {
        "run_id": number(),
        "enqueued_ms": START_MS,
        "flow": "f",
        "action": "a",
    } | given
    data = encode_run(
        [b"%b %d" % (payload, index) for index in range(items)], queue=queue, keys=keys, **fields
    )
    of_row.setdefault("row", number())
    of_row.setdefault("bits", item_bits(0, items))
    return NewRow(head=read_head(data), data=data, due_ms=row_due_ms, **of_row)


def part_of(row: NewRow | ColdRow, bits: int, **fields: Any) -> NewRow:
    """Another row of the same body."""
    return NewRow(number(), row.head, row.data, bits, **fields)


def dead_row(error: str = "it broke", died_ms: int = START_MS, **given: Any) -> NewRow:
    given.setdefault("errors", (ItemError(1, died_ms - 10, "first"), ItemError(2, died_ms, error)))
    return new_row(given.pop("items", 1), is_dead=True, attempt=2, **given)


async def put(stores: ColdStores, *rows: NewRow) -> None:
    """A whole hand-over."""
    await stores.cold.store(rows)
    await stores.cold.confirm([row.row for row in rows])


async def acquire(
    stores: ColdStores,
    lock: bytes = b"L" * 16,
    *,
    queue: str = "q",
    items_max: int = PLENTY,
    bytes_max: int = PLENTY,
    lease_s: float = LEASE_S,
    except_flows: frozenset[str] = frozenset(),
    cuts: bool = False,
) -> list[ColdRow]:
    return await stores.cold.acquire(
        queue, lock, items_max, bytes_max, lease_s, except_flows, cuts=cuts
    )


async def acquired_ids(stores: ColdStores, lock: bytes = b"L" * 16, **given: Any) -> list[bytes]:
    return [row.row for row in await acquire(stores, lock, **given)]


async def check_books(stores: ColdStores) -> None:
    """taken + accepted = delivered + dead + deleted + lost + held, and flows add up to queues."""
    totals = await stores.cold.totals()
    flows = await stores.cold.flows()
    for queue, books in totals.items():
        came = books.taken + books.accepted
        ended = books.delivered + books.dead + books.deleted + books.lost
        assert came == ended + books.held, queue
        assert books.held == sum(flow.items for flow in flows if flow.queue == queue)
        assert books.dead == sum(flow.dead for flow in flows if flow.queue == queue)
