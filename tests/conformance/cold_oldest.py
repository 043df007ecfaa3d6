"""What a cold store says of the oldest items that it holds, by flow."""

from actors.ports.tiers import RowOutcome
from tests.conformance.cold_stores import START_MS, ColdStores, acquire, dead_row, new_row, put


class OldestSuite:
    async def test_the_oldest_of_each_flow_is_told(self, stores: ColdStores) -> None:
        assert await stores.cold.oldest() == {}
        await put(
            stores,
            new_row(enqueued_ms=START_MS - 10),
            new_row(enqueued_ms=START_MS - 30),
            new_row(enqueued_ms=START_MS - 20),
            new_row(flow="g", enqueued_ms=START_MS - 5),
            new_row(flow="g", action="b", enqueued_ms=START_MS - 6),
            new_row(queue="r", enqueued_ms=START_MS - 7),
        )
        assert await stores.cold.oldest() == {
            ("q", "f", "a"): START_MS - 30,
            ("q", "g", "a"): START_MS - 5,
            ("q", "g", "b"): START_MS - 6,
            ("r", "f", "a"): START_MS - 7,
        }

    async def test_what_is_not_confirmed_or_dead_is_not_the_oldest(
        self, stores: ColdStores
    ) -> None:
        await stores.cold.store([new_row(enqueued_ms=START_MS - 90)])
        await put(stores, dead_row(enqueued_ms=START_MS - 80), new_row(enqueued_ms=START_MS - 1))
        assert await stores.cold.oldest() == {("q", "f", "a"): START_MS - 1}

    async def test_when_the_oldest_is_delivered_the_next_one_is(self, stores: ColdStores) -> None:
        await put(stores, new_row(enqueued_ms=START_MS - 9), new_row(enqueued_ms=START_MS - 8))
        oldest, newer = await acquire(stores)
        assert await stores.cold.oldest() == {("q", "f", "a"): START_MS - 9}
        await stores.cold.settle([RowOutcome(oldest.row, b"L" * 16, delivered=oldest.bits)])
        assert await stores.cold.oldest() == {("q", "f", "a"): START_MS - 8}
        await stores.cold.settle([RowOutcome(newer.row, b"L" * 16, delivered=newer.bits)])
        assert await stores.cold.oldest() == {}

    async def test_what_a_consumer_has_claimed_is_still_held(self, stores: ColdStores) -> None:
        await put(stores, new_row(enqueued_ms=START_MS - 9))
        await stores.cold.claim("q", "me", 0, 10)
        assert await stores.cold.oldest() == {("q", "f", "a"): START_MS - 9}
