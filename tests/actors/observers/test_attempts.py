"""Attempts are counted across the lives of a daemon: none twice, and none lost but in a crash."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.model.attempts import Attempts
from actors.observers import attempts
from actors.observers.attempts import FLUSH_S, AttemptBook
from actors.observers.tallies import Tallies
from daemon.stores.sqlite.store import SqliteCold
from tests.eventually import eventually
from tests.rig.fragile_cold import FragileCold, as_port


class Life:
    """A daemon's counts from its start to its end."""

    def __init__(self, cold: FragileCold) -> None:
        self.tallies = Tallies()
        self.book = AttemptBook(as_port(cold), self.tallies)

    def tries(self, items: int = 1, queue: str = "q") -> None:
        """So many items were tried, and all of them failed."""
        self.tallies.pulled(queue, items, 0.5)
        self.tallies.of(queue).failed["business"] += items

    async def counted(self, queue: str = "q") -> int:
        found = await self.book.of(queue)
        assert found.business == found.processing.items
        return found.business


@asynccontextmanager
async def life_of(cold: FragileCold) -> AsyncIterator[Life]:
    """Ends in good order; if the body fails, at once."""
    life = Life(cold)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.book.run)
        yield life
        await life.book.close()


@pytest.fixture
async def cold(tmp_path: Path) -> AsyncIterator[FragileCold]:
    store = SqliteCold(tmp_path / "cold.sqlite", 60.0, ballast_bytes=0)
    await store.open()
    yield FragileCold(store)
    await store.close()


async def until_stored(cold: FragileCold, items: int, queue: str = "q") -> None:
    async def check() -> None:
        assert (await cold.attempts(queue)).own.business == items

    await eventually(check)


async def test_attempts_of_all_lives_add_up(cold: FragileCold) -> None:
    for n in range(1, 4):
        async with life_of(cold) as life:
            life.tries(2)
            assert await life.counted() == 2 * n
            life.tries(0)
    assert (await cold.attempts("q")).own.business == 6


async def test_earlier_lives_are_looked_up_once(cold: FragileCold, mock_clock: MockClock) -> None:
    mock_clock.rate = 1000
    async with life_of(cold) as life:
        life.tries(3)
        await until_stored(cold, 3)
        cold.break_down("own_attempts")
        life.tries(1)
        await until_stored(cold, 4)
        assert await life.counted() == 4
        assert await life.counted("another") == 0
        cold.mend()


async def test_nothing_is_counted_twice_when_the_answer_to_a_write_is_lost(
    cold: FragileCold, mock_clock: MockClock
) -> None:
    mock_clock.rate = 1000
    async with life_of(cold) as life:
        life.tries(3)
    cold.loses_answers.add("note_attempts")
    async with life_of(cold) as life:
        life.tries(5)
        await until_stored(cold, 8)
        assert await life.counted() == 8
        life.tries(1)
        await until_stored(cold, 9)
        cold.mend()
    async with life_of(cold) as life:
        assert await life.counted() == 9


async def test_while_the_store_is_away_counts_are_kept_and_shown(
    cold: FragileCold, mock_clock: MockClock
) -> None:
    mock_clock.rate = 1000
    async with life_of(cold) as life:
        life.tries(3)
    cold.break_down()
    async with life_of(cold) as life:
        life.tries(1)
        # What was before is not known yet.
        assert await life.counted() == 1
        await trio.sleep(3 * FLUSH_S)
        assert "note_attempts" not in cold.calls
        cold.mend()
        await until_stored(cold, 4)
        cold.break_down()
        life.tries(1)
        assert await life.counted() == 5
        cold.mend()
    assert (await cold.attempts("q")).own.business == 5


async def test_many_queues_are_written_some_at_a_time(
    cold: FragileCold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "WRITTEN_QUEUES", 3)
    async with life_of(cold) as life:
        for n in range(8):
            life.tries(n + 1, f"q{n}")
    for n in range(8):
        assert (await cold.attempts(f"q{n}")).own.business == n + 1


async def test_a_queue_that_nothing_was_tried_of_is_not_written(cold: FragileCold) -> None:
    async with life_of(cold) as life:
        life.tallies.of("q").lost_leases += 1
    assert (await cold.attempts("q")).own == Attempts()
    assert await cold.own_attempts(["q"]) == {}
