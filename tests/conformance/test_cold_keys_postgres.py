"""The suite of unique keys, passed by PostgreSQL; and daemons that want the same keys at once."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import trio
from hypothesis import given, settings

from actors.model.keys import KeyRule, Policy
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.keys import PostgresKeys
from forebay.keyed import KeyOutcome
from tests.conformance.cold_keys import KeySuite, deletes_let_go, offer, old_runs_are_forgotten
from tests.conformance.cold_stores import check_books
from tests.conformance.key_model import SCRIPTS, KeyPlayer, Step
from tests.conformance.postgres_stores import PostgresStores

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome


@pytest.fixture
async def stores() -> AsyncIterator[PostgresStores]:
    async with Bridge() as bridge:
        stores = PostgresStores(bridge)
        await stores.cold.open()
        try:
            yield stores
        finally:
            await stores.drop()


class TestPostgresKeys(KeySuite):
    async def test_items_that_are_deleted_let_go_of_their_keys(
        self, stores: PostgresStores
    ) -> None:
        await deletes_let_go(stores, stores.cold.items)

    async def test_runs_that_nobody_will_offer_again_are_forgotten(
        self, stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(PostgresKeys, "offered_max", 2)
        await old_runs_are_forgotten(stores)

    @pytest.mark.parametrize(
        "policy,other", [("ignore", IGNORED), ("reject", CONFLICT), ("replace", UPDATED)]
    )
    async def test_of_two_daemons_one_creates_each_key(
        self, stores: PostgresStores, policy: Policy, other: KeyOutcome
    ) -> None:
        daemons = [stores.make(daemon) for daemon in (b"daemon number 1.", b"daemon number 2.")]
        keys = [b"key %d" % n for n in range(60)]
        found: Counter[tuple[bytes, int]] = Counter()

        async def produce(which: int, size: int) -> None:
            for start in range(0, len(keys), size):
                part = keys[start : start + size]
                # From both ends, so that they meet.
                one = offer(*(part if which else reversed(part)))
                (outcomes,) = await daemons[which].offer([one])
                found.update(zip(one.run.keys(), outcomes, strict=True))

        try:
            for cold in daemons:
                await cold.open()
                cold.keep_keys(lambda _: KeyRule(policy))
            async with trio.open_nursery() as nursery:
                for which, size in ((0, 60), (1, 60), (0, 7), (1, 13), (0, 30), (1, 1)):
                    nursery.start_soon(produce, which, size)
        finally:
            for cold in daemons:
                await cold.close()
        assert [found[key, CREATED] for key in keys] == [1] * len(keys)
        assert [found[key, other] for key in keys] == [5] * len(keys)
        await check_books(stores)
        assert (await stores.cold.totals())["q"].held == len(keys)


@given(SCRIPTS)
@settings(max_examples=15, deadline=None)
def test_postgres_agrees_with_the_model_of_keys(script: tuple[Policy, list[Step]]) -> None:
    async def play() -> None:
        async with Bridge() as bridge:
            stores = PostgresStores(bridge)
            await stores.cold.open()
            try:
                await KeyPlayer(stores, script[0]).play(script[1])
            finally:
                await stores.drop()

    trio.run(play)
