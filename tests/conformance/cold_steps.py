"""What a cold store must do whose leases run on this host's clocks: leases outlive a step of the
wall clock, and do not outlast it; what is due goes by the wall clock.

A store that takes the time from a server of its own does not run this.
"""

from actors.ports.tiers import Outlook, RowOutcome
from tests.conformance.cold_stores import (
    LEASE_S,
    START_MS,
    ColdStores,
    acquire,
    acquired_ids,
    new_row,
    put,
)

LOCK, OTHER = b"L" * 16, b"O" * 16
LEASE_MS = round(LEASE_S * 1000)
HOUR_MS = 3_600_000


class StepSuite:
    async def test_nothing_is_acquired_twice_when_the_wall_clock_is_set_forward(
        self, stores: ColdStores
    ) -> None:
        row = new_row()
        await put(stores, row)
        await acquire(stores)
        stores.step(HOUR_MS)
        assert await stores.cold.outlook("q") == Outlook(False, START_MS + HOUR_MS + LEASE_MS)
        assert await acquire(stores, OTHER) == []
        stores.advance(LEASE_MS - 1)
        assert await acquire(stores, OTHER) == []
        assert await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=row.bits)]) == [True]

    async def test_a_lease_lasts_no_longer_when_the_wall_clock_is_set_back(
        self, stores: ColdStores
    ) -> None:
        row = new_row()
        await put(stores, row)
        await acquire(stores)
        stores.step(-HOUR_MS)
        assert await stores.cold.outlook("q") == Outlook(False, START_MS - HOUR_MS + LEASE_MS)
        assert await acquire(stores, OTHER) == []
        stores.advance(LEASE_MS)
        assert await stores.cold.outlook("q") == Outlook(True, None)
        assert await acquired_ids(stores, OTHER) == [row.row]

    async def test_a_renewed_lease_is_as_steady(self, stores: ColdStores) -> None:
        await put(stores, new_row(), new_row())
        await acquire(stores, LOCK, items_max=3)
        await acquire(stores, OTHER)
        stores.step(HOUR_MS)
        assert await stores.cold.renew([LOCK], 2 * LEASE_S) == [1]
        stores.step(-2 * HOUR_MS)
        assert await stores.cold.renew([OTHER], LEASE_S) == [1]
        stores.advance(LEASE_MS - 1)
        assert await acquire(stores) == []
        stores.advance(1)
        assert len(await acquire(stores, lease_s=9 * LEASE_S)) == 1
        stores.advance(LEASE_MS)
        assert len(await acquire(stores)) == 1

    async def test_what_is_scheduled_follows_the_wall_clock(self, stores: ColdStores) -> None:
        late, leased = new_row(row_due_ms=START_MS + HOUR_MS), new_row()
        await put(stores, late, leased)
        assert await acquired_ids(stores, LOCK, lease_s=9 * 3600.0) == [leased.row]
        stores.step(-HOUR_MS)
        stores.advance(HOUR_MS)
        assert await stores.cold.outlook("q") == Outlook(False, START_MS + HOUR_MS)
        assert await acquire(stores, OTHER) == []
        stores.step(HOUR_MS)
        assert (await stores.cold.outlook("q")).has_due
        assert await acquired_ids(stores, OTHER) == [late.row]

    async def test_the_outlook_is_what_comes_first_by_the_wall_clock(
        self, stores: ColdStores
    ) -> None:
        """Though the times that are stored are in another order."""
        await put(stores, new_row())
        await acquire(stores)
        stores.step(HOUR_MS)
        soon_ms = stores.now_ms() + LEASE_MS
        await put(stores, new_row(row_due_ms=soon_ms - 1))
        assert await stores.cold.outlook("q") == Outlook(False, soon_ms - 1)
        stores.step(-2 * HOUR_MS)
        assert await stores.cold.outlook("q") == Outlook(False, stores.now_ms() + LEASE_MS)

    async def test_what_was_given_back_is_due_at_once(self, stores: ColdStores) -> None:
        row = new_row()
        await put(stores, row)
        await acquire(stores)
        stores.step(HOUR_MS)
        await stores.cold.release(LOCK, [row.row])
        stores.step(-2 * HOUR_MS)
        assert await acquired_ids(stores) == [row.row]

    async def test_what_is_due_at_once_is_so_when_the_wall_clock_is_set_back_before_it_is_confirmed(
        self, stores: ColdStores
    ) -> None:
        row = new_row()
        await stores.cold.store([row])
        stores.step(-HOUR_MS)
        await stores.cold.confirm([row.row])
        assert await acquired_ids(stores) == [row.row]
