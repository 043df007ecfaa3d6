"""The suite of the `ColdQueue` port: what became of a write's items is counted in its receipt."""

import pytest

from actors.model.books import ColdReceipt
from actors.ports.tiers import ColdTotals, DeadFilter, RowOutcome
from forebay.ids import format_item_id
from tests.conformance.cold_stores import ColdStores, acquire, dead_row, new_row, part_of, put

LOCK = b"L" * 16
A, B = b"A" * 16, b"B" * 16


def of(write: bytes) -> dict[str, str]:
    return {"forebay-write": write.hex()}


class ReceiptSuite:
    async def test_delivered_items_are_counted_for_their_write(self, stores: ColdStores) -> None:
        a, b, other = new_row(3, headers=of(A)), new_row(5, headers=of(B)), new_row(2)
        await put(stores, a, b, other)
        assert await stores.cold.receipt(A) == ColdReceipt()
        await acquire(stores)
        await stores.cold.settle(
            [
                RowOutcome(a.row, LOCK, delivered=0b011),
                RowOutcome(b.row, LOCK, delivered=0b11111),
                RowOutcome(other.row, LOCK, delivered=0b11),
            ]
        )
        assert await stores.cold.receipt(A) == ColdReceipt(delivered=2)
        # Told twice, counted once.
        await stores.cold.settle([RowOutcome(a.row, LOCK, delivered=0b111)] * 2)
        await stores.reopen()
        assert await stores.cold.receipt(A) == ColdReceipt(delivered=3)
        assert await stores.cold.receipt(B) == ColdReceipt(delivered=5)
        assert await stores.cold.receipt(b"C" * 16) == ColdReceipt()

    async def test_a_dead_letter_that_is_retried_or_removed_changes_the_receipt(
        self, stores: ColdStores
    ) -> None:
        row = new_row(4, headers=of(A))
        letters = [dead_row(headers=of(A)), dead_row(headers=of(B))]
        await put(stores, row)
        await stores.cold.store(letters)
        assert (await stores.cold.receipt(B)).dead == 0
        await stores.cold.confirm([letter.row for letter in letters])
        (got,) = await acquire(stores)
        moved = [part_of(got, 1 << index, is_dead=True) for index in (1, 2)]
        again = part_of(got, 0b1000, attempt=1)
        await stores.cold.settle([RowOutcome(row.row, LOCK, 0b0001, (*moved, again), 0b1110)])
        assert await stores.cold.receipt(A) == ColdReceipt(delivered=1, dead=3)
        assert await stores.cold.receipt(B) == ColdReceipt(dead=1)

        one = DeadFilter(ids=(format_item_id(row.head.run_id, 1),))
        await stores.dead.edit(one.ids[0], b"another payload")
        await stores.dead.retry(one, 10)
        assert await stores.cold.receipt(A) == ColdReceipt(delivered=1, dead=2)
        rows = await acquire(stores, b"O" * 16)
        assert sum(got.bits.bit_count() for got in rows) == 2
        await stores.cold.settle([RowOutcome(got.row, b"O" * 16, got.bits) for got in rows])
        await stores.dead.remove(DeadFilter(), 10)
        assert await stores.cold.receipt(A) == ColdReceipt(delivered=3, deleted=2)
        assert await stores.cold.receipt(B) == ColdReceipt(deleted=1)
        assert await stores.cold.totals() == {"q": ColdTotals(taken=6, delivered=3, deleted=3)}

    @pytest.mark.parametrize("text", ["", "ab", "no id, but thirty-two characters", "a " * 16])
    async def test_what_is_no_write_id_counts_as_none(self, stores: ColdStores, text: str) -> None:
        row = new_row(headers={"forebay-write": text, "other": A.hex()})
        await put(stores, row)
        await acquire(stores)
        await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b111)])
        assert await stores.cold.receipt(A) == ColdReceipt()
        assert (await stores.cold.totals())["q"].delivered == 3

    async def test_a_receipt_that_was_forgotten_does_not_begin_again(
        self, stores: ColdStores
    ) -> None:
        row, letter = new_row(headers=of(A)), dead_row(headers=of(A))
        kept = new_row(headers=of(B))
        await put(stores, row, letter, kept)
        await acquire(stores)
        await stores.cold.settle([RowOutcome(kept.row, LOCK, delivered=0b111)])
        await stores.cold.forget_receipts([A, b"C" * 16])
        await stores.cold.forget_receipts([])
        await stores.cold.settle([RowOutcome(row.row, LOCK, delivered=0b111)])
        await stores.dead.remove(DeadFilter(), 10)
        assert await stores.cold.receipt(A) == ColdReceipt()
        assert await stores.cold.receipt(B) == ColdReceipt(delivered=3)
