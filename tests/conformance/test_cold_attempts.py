"""Attempts of each queue in the cold store, passed by SQLite and by PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.model.attempts import Attempts
from actors.model.latencies import Distribution, Histogram
from actors.ports.tiers import StoredAttempts
from daemon.stores.bridge import Bridge
from tests.conformance.cold_stores import ColdStores
from tests.conformance.postgres_stores import PostgresStores
from tests.conformance.sqlite_stores import SqliteStores

NOTHING = Attempts()


def took(*seconds: float) -> Distribution:
    histogram = Histogram()
    for each in seconds:
        histogram.add(each, 3)
    return histogram.frozen()


FIRST = Attempts(2, 1, took(0.0, 0.5, 0.5, 5000.0))
SECOND = Attempts(7, 0, took(0.1))


class AttemptsSuite:
    async def test_the_last_word_of_a_daemon_counts(self, stores: ColdStores) -> None:
        assert await stores.cold.attempts("q") == StoredAttempts(NOTHING, NOTHING)
        assert await stores.cold.own_attempts(["q", "r"]) == {}
        await stores.cold.note_attempts({"q": FIRST, "r": SECOND})
        await stores.cold.note_attempts({"q": FIRST})
        assert await stores.cold.attempts("q") == StoredAttempts(FIRST, NOTHING)
        await stores.cold.note_attempts({"q": SECOND})
        assert await stores.cold.attempts("q") == StoredAttempts(SECOND, NOTHING)
        assert await stores.cold.own_attempts(["q", "r", "s"]) == {"q": SECOND, "r": SECOND}
        await stores.cold.note_attempts({})

    async def test_attempts_outlive_a_crash(self, stores: ColdStores) -> None:
        await stores.cold.note_attempts({"q": FIRST})
        await stores.cold.sync()
        await stores.crash()
        assert await stores.cold.own_attempts(["q"]) == {"q": FIRST}


class TestSqliteAttempts(AttemptsSuite):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SqliteStores]:
        stores = SqliteStores(tmp_path)
        await stores.cold.open()
        yield stores
        await stores.cold.close()

    @pytest.mark.parametrize("damage", ["'?'", "'[1]'", "'[0, 0, [[900, 1]]]'", "x'ff'", "7"])
    async def test_durations_that_make_no_sense_are_none(
        self, stores: SqliteStores, damage: str
    ) -> None:
        await stores.cold.note_attempts({"q": FIRST})
        stores.beside(lambda db: db.execute(f"UPDATE attempts SET processing = {damage}"))
        assert (await stores.cold.attempts("q")).own == Attempts(2, 1)


class TestPostgresAttempts(AttemptsSuite):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[PostgresStores]:
        async with Bridge() as bridge:
            stores = PostgresStores(bridge)
            await stores.cold.open()
            try:
                yield stores
            finally:
                await stores.drop()

    async def test_daemons_see_each_other_s_attempts(self, stores: PostgresStores) -> None:
        here, others = stores.cold, [stores.make(name * 16) for name in (b"b", b"c")]
        for other in others:
            await other.open()
            await other.note_attempts({"q": SECOND})
        await here.note_attempts({"q": FIRST})
        assert await here.attempts("q") == StoredAttempts(FIRST, SECOND + SECOND)
        assert await others[0].attempts("q") == StoredAttempts(SECOND, FIRST + SECOND)
        assert await here.own_attempts(["q"]) == {"q": FIRST}
        for other in others:
            await other.close()
