"""The cron actor on a real store and a clock that the test moves.

Tests name the clock themselves: pytest-trio uses one that the test asks for, and no fixture's.
"""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from actors.config.book import Book, Kept
from actors.config.schedules import Installed, KeptSchedules, ScheduleSettings
from actors.config.triggers import TRIGGER, QueueTrigger
from actors.control.fields import Fields
from actors.control.schedules import CronControl
from actors.cron import schedules as cron_module
from actors.cron.schedules import Schedules
from actors.model.keys import Offer, Phase
from actors.ports.ticks import Marks, Tick, TickChange, TickOutcome, TickStore
from actors.ports.tiers import ColdTotals, StoreUnavailable
from daemon.state.kept_file import SCHEDULES, KeptFile, from_text, to_text
from forebay.errors import Refused
from tests.conformance.cold_keys import deliver_all
from tests.conformance.cold_stores import START_MS
from tests.conformance.sqlite_stores import SqliteStores

TEN = {"queue": "q", "every": "10s", "payload": "tick"}
assert START_MS % 10_000 == 0


def check(schedule: ScheduleSettings) -> int:
    if schedule.queue == "nobody":
        raise Refused("NOT_FOUND", "there is no queue nobody")
    return 5


class Leaving:
    """A store that can be away."""

    def __init__(self, ticks: TickStore) -> None:
        self.ticks = ticks
        self.is_away = False
        self.writes = 0
        self.looks = 0

    async def marks(self) -> Marks:
        if self.is_away:
            raise StoreUnavailable("away")
        return await self.ticks.marks()

    async def phases(self, ticks: Sequence[Tick]) -> list[Phase | None]:
        if self.is_away:
            raise StoreUnavailable("away")
        self.looks += 1
        return await self.ticks.phases(ticks)

    async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
        self.writes += 1
        return await self.ticks.change(changes)


class World:
    def __init__(self, directory: Path, clock: MockClock) -> None:
        self.stores = SqliteStores(directory)
        self.clock = clock
        self.kept = KeptSchedules()
        self.come: list[str] = []
        self.failed: list[tuple[str, str, str]] = []
        self.store = Leaving(self.stores.cold.ticks)

    def cron(self, store: TickStore | None = None, **schedules: dict[str, Any]) -> Schedules:
        """Another life of the daemon."""

        async def save(kept: KeptSchedules) -> None:
            self.kept, rejected = from_text(to_text(kept), KeptSchedules)
            assert not rejected

        settings = {name: ScheduleSettings.model_validate(keys) for name, keys in schedules.items()}

        def failed(name: str, error: str, queue: str) -> None:
            self.failed.append((name, error, queue))

        kept = Kept(self.kept, save)
        return Schedules(settings, kept, store or self.store, check, self.come.append, failed)

    def passes(self, seconds: float) -> None:
        self.stores.advance(round(seconds * 1000))
        self.clock.jump(seconds)

    def ticks(self) -> list[tuple[str, float]]:
        """The ticks that are there: of which schedule, and how many seconds after the start."""
        rows = self.stores.beside(
            lambda db: db.execute(
                "SELECT key FROM keys WHERE until IS NULL ORDER BY key"
            ).fetchall()
        )
        parts = [key.decode().split("/") for (key,) in rows]
        return [(name, (int(at) - START_MS) / 1000) for name, _, at in parts]

    def at(self) -> list[float]:
        return [at for _, at in self.ticks()]


@pytest.fixture
async def world(tmp_path: Path, mock_clock: MockClock) -> AsyncIterator[World]:
    world = World(tmp_path, mock_clock)
    await world.stores.cold.open()
    yield world
    await world.stores.cold.close()


async def test_the_next_four_are_always_there_and_each_is_installed_once(
    world: World, mock_clock: MockClock
) -> None:
    cron = world.cron(s=TEN)
    delivered = 0
    for _ in range(20):
        await cron.look()
        assert len(world.at()) == 4
        world.passes(10)
        delivered += len(await deliver_all(world.stores))
    assert delivered == 20
    assert cron.figures() == {"schedules": 1, "installed_total": 23, "missed_total": 0}
    assert set(world.come) == {"q"}


async def test_a_look_before_its_time_asks_nobody(world: World, mock_clock: MockClock) -> None:
    cron = world.cron(s=TEN)
    await cron.look()
    world.passes(2)
    await cron.look()
    assert world.store.writes == 1
    world.passes(1)
    await cron.look()
    assert world.store.writes == 2


async def test_the_task_looks_by_itself(world: World, mock_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(world.cron(s=TEN).run)
        assert world.at() == [10, 20, 30, 40]
        for turn in range(1, 6):
            world.passes(10)
            while world.at()[-1] != 40 + 10 * turn:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_a_changed_schedule_replaces_its_ticks(world: World, mock_clock: MockClock) -> None:
    await world.cron(s=TEN).look()
    world.passes(15)
    cron = world.cron(s={**TEN, "every": "60s", "queue": "other"})
    await cron.look()
    # The one that was due stays.
    assert sorted(world.at()) == [10, 20, 80, 140, 200]
    totals = await world.stores.cold.totals()
    assert (totals["q"].held, totals["q"].deleted, totals["other"].held) == (1, 3, 4)


async def test_a_schedule_that_is_gone_or_disabled_takes_its_ticks_along(
    world: World, mock_clock: MockClock
) -> None:
    await world.cron(s=TEN, t=TEN).look()
    assert len(world.at()) == 8
    cron = world.cron(t={**TEN, "enabled": False})
    await cron.look()
    assert world.at() == []
    assert (await world.stores.cold.ticks.marks()).by_name == {}
    assert world.kept.installed == {}
    await world.cron(t=TEN).look()
    assert len(world.at()) == 4


async def test_of_two_daemons_with_two_configurations_neither_undoes_the_other(
    world: World,
    mock_clock: MockClock,
) -> None:
    old = world.cron(s=TEN)
    await old.look()
    world.kept = KeptSchedules()
    await world.cron(s={**TEN, "payload": "new"}).look()
    writes = world.store.writes
    world.passes(30)
    await old.look()
    assert world.store.writes == writes
    # The other one is gone, and its ticks run out.
    world.passes(30)
    await old.look()
    assert world.store.writes == writes + 1
    assert world.at()[-4:] == [70, 80, 90, 100]


@pytest.mark.parametrize(
    "missed, ran, given_up",
    [
        ("run_all", [10, 20, 30, 40, 50, 60, 70, 80, 90, 100], 0),
        ("run_once", [100], 9),
        ("skip", [], 10),
    ],
)
async def test_what_was_missed_while_nobody_was_there(
    world: World, mock_clock: MockClock, missed: str, ran: list[float], given_up: int
) -> None:
    await world.cron(s={**TEN, "missed": missed}).look()
    world.passes(101)
    cron = world.cron(s={**TEN, "missed": missed})
    await cron.look()
    assert world.at() == [*ran, 110, 120, 130, 140]
    assert cron.missed_total == given_up
    assert len(await deliver_all(world.stores)) == len(ran)


async def test_what_waits_although_somebody_is_there_is_not_missed(
    world: World, mock_clock: MockClock
) -> None:
    """A queue that is paused, or slow."""
    cron = world.cron(s={**TEN, "missed": "skip"})
    for _ in range(30):
        await cron.look()
        world.passes(5)
    assert len(await deliver_all(world.stores)) == 15
    assert cron.missed_total == 0


async def test_ticks_are_installed_when_the_store_is_back_and_none_twice(
    world: World, mock_clock: MockClock
) -> None:
    cron = world.cron(s={**TEN, "missed": "run_all"})
    world.store.is_away = True
    await cron.look()
    assert world.at() == []
    world.store.is_away = False
    await cron.look()
    assert world.at() == [10, 20, 30, 40]
    world.store.is_away = True
    for _ in range(10):
        world.passes(10)
        await cron.look()
    world.store.is_away = False
    await cron.look()
    assert world.at() == [10 * n for n in range(1, 15)]


async def test_a_step_whose_answer_is_lost_is_not_taken_twice(
    world: World, mock_clock: MockClock
) -> None:
    class Silent(Leaving):
        async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
            await super().change(changes)
            raise StoreUnavailable("nobody knows")

    silent = Silent(world.stores.cold.ticks)
    cron = world.cron(silent, s=TEN)
    for _ in range(3):
        await cron.look()
        world.passes(3)
    assert world.at() == [10, 20, 30, 40]
    assert (await world.stores.cold.totals())["q"] == ColdTotals(held=4, runs=4, accepted=4)


async def test_what_is_quicker_is_respected(world: World, mock_clock: MockClock) -> None:
    """Another daemon's step comes between a decision and its step."""

    class Late(Leaving):
        async def change(self, changes: Sequence[TickChange]) -> list[TickOutcome]:
            if self.writes == 0:
                await self.ticks.change(changes)
            return await super().change(changes)

    await world.cron(Late(world.stores.cold.ticks), s=TEN).look()
    assert (await world.stores.cold.totals())["q"] == ColdTotals(held=4, runs=4, accepted=4)


async def test_schedules_of_run_time_outlive_the_daemon(
    world: World, mock_clock: MockClock
) -> None:
    cron = world.cron(s=TEN)
    await cron.look()
    await cron.add("extra", {"queue": "q", "every": "1h"})
    assert len(world.ticks()) == 8
    with pytest.raises(Refused, match="there is a schedule extra already"):
        await cron.add("extra", TEN)
    for act in (cron.change("s", {"payload": "x"}), cron.remove("s")):
        with pytest.raises(Refused, match="defined in the configuration"):
            await act
    for keys, text in (
        ({"queue": "nobody", "every": 1}, "no queue"),
        ({"queue": "q"}, "one of cron"),
    ):
        with pytest.raises(Refused, match=text):
            await cron.add("bad", keys)
    again = world.cron(s=TEN)
    assert again.book.find("extra").every == 3600
    await again.change("extra", {"every": None, "cron": "0 0 * * *"})
    assert again.book.find("extra").cron == "0 0 * * *"
    await again.remove("extra")
    assert {name for name, _ in world.ticks()} == {"s"}
    with pytest.raises(Refused, match="there is no schedule extra"):
        await again.remove("extra")


async def test_running_now_leaves_the_ticks_alone(world: World, mock_clock: MockClock) -> None:
    cron = world.cron(s={**TEN, "enabled": False})
    await cron.look()
    items = {await cron.run_now("s") for _ in range(3)}
    assert len(items) == 3
    assert await deliver_all(world.stores) == [b"tick"] * 3
    await cron.reload({"s": ScheduleSettings.model_validate(TEN)})
    await cron.look()
    marks = await world.stores.cold.ticks.marks()
    await cron.run_now("s")
    assert await world.stores.cold.ticks.marks() == marks
    assert len(await deliver_all(world.stores)) == 1


async def test_a_schedule_that_cannot_be_says_why(world: World, mock_clock: MockClock) -> None:
    cron = world.cron(s={**TEN, "queue": "nobody"}, t=TEN)
    await cron.look()
    assert cron.problem("s") == "there is no queue nobody"
    world.passes(3600)
    await cron.look()
    assert world.failed == [("s", "there is no queue nobody", "nobody")]
    await deliver_all(world.stores)
    assert [name for name, _ in world.ticks()] == ["t"] * 4


def test_the_file_is_replaced_and_what_is_damaged_is_kept_aside(tmp_path: Path) -> None:
    file = KeptFile(tmp_path / SCHEDULES, KeptSchedules())
    assert file.load() == KeptSchedules()
    kept = KeptSchedules({"s": TEN}, {})
    trio.run(file.save, kept)
    assert file.load() == kept
    for text in ("{", '{"version": 2}', '{"version": 1, "schedules": []}', "[" * 100_000):
        (tmp_path / "schedules.json").write_text(text)
        assert file.load() == KeptSchedules()
    assert len(list(tmp_path.glob("schedules.json.damaged-*"))) == 4


def test_an_entry_that_makes_no_sense_is_set_aside_alone(tmp_path: Path) -> None:
    file = KeptFile(tmp_path / SCHEDULES, KeptSchedules())
    content = {
        "version": 1,
        "schedules": {"good": TEN, "bad": 1},
        "installed": {"good": ["abc", True], "bad": 5, "worse": [1, 2, 3]},
    }
    (tmp_path / SCHEDULES).write_text(json.dumps(content))
    for _ in range(2):
        with structlog.testing.capture_logs() as logged:
            kept = file.load()
        assert kept == KeptSchedules({"good": TEN}, {"good": Installed("abc", is_done=True)})
        (line,) = logged
        assert line["event"] == "state.entries_rejected"
        assert {entry.partition(":")[0] for entry in line["entries"]} == {
            "schedules.bad",
            "installed.bad",
            "installed.worse",
        }
    trio.run(file.save, kept)
    (aside,) = tmp_path.glob("schedules.json.rejected-*")
    assert line["kept"] == str(aside)
    assert json.loads(aside.read_text()) == content


async def test_a_schedule_that_meets_a_bug_leaves_the_others_alone(
    world: World, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = cron_module.make_offer

    def failing(name: str, *about: Any) -> Offer:
        if name == "bad":
            raise ValueError("a bug")
        return make(name, *about)

    monkeypatch.setattr(cron_module, "make_offer", failing)
    cron = world.cron(bad=TEN, good=TEN)
    with structlog.testing.capture_logs() as logged:
        await cron.look()
        world.passes(3600)
        await cron.look()
    assert [line["event"] for line in logged].count("daemon.internal_error") == 1
    assert "unexpected error" in cron.problem("bad")
    await deliver_all(world.stores)
    assert {name for name, _ in world.ticks()} == {"good"}


def test_a_definition_that_cannot_be_used_can_be_changed_or_removed(tmp_path: Path) -> None:
    saved: list[KeptSchedules] = []

    async def save(kept: KeptSchedules) -> None:
        saved.append(kept)

    async def mend() -> None:
        bad = {**TEN, "payload": float("nan")}
        kept = Kept(KeptSchedules({"a": bad, "b": bad}), save)
        ticks = SqliteStores(tmp_path).cold.ticks
        book = Schedules({}, kept, ticks, check, lambda _: None, lambda *_: None).book
        assert not book.definitions
        await book.change("a", {"payload": 1})
        await book.remove("b")
        assert list(book.definitions) == ["a"]
        assert list(saved[-1].schedules) == ["a"]

    trio.run(mend)


async def test_the_next_tick_is_told_as_clock_and_schedule_are(
    world: World, mock_clock: MockClock
) -> None:
    now_ms = START_MS + 1
    cron = world.cron(s=TEN, off=TEN | {"enabled": False})
    await cron.book.add("mine", TEN)
    control = CronControl(cron, no_triggers(), lambda: now_ms)

    async def told() -> dict[str, int | None]:
        listed = await control.operations["cron.list"](Fields({}))
        return {one["name"]: one["next_ms"] for one in listed["schedules"]}

    first = {"mine": START_MS + 10_000, "off": None, "s": START_MS + 10_000}
    assert await told() == await told() == first
    now_ms = START_MS + 10_000
    assert (await told())["s"] == START_MS + 20_000
    now_ms = START_MS  # Set back.
    assert (await told())["s"] == START_MS + 10_000
    await cron.book.change("mine", {"every": "1m"})
    assert (await told())["mine"] == START_MS - START_MS % 60_000 + 60_000


async def test_what_is_left_out_of_a_changed_payload_is_gone(world: World) -> None:
    cron = world.cron()
    kept = await cron.book.add("s", {"queue": "q", "every": "1m", "payload": {"a": 1, "b": 2}})
    assert kept.payload == {"a": 1, "b": 2}
    changed = await cron.book.change("s", {"payload": {"a": 1}})
    assert (changed.payload, changed.every) == ({"a": 1}, kept.every)


def no_triggers() -> Book[QueueTrigger]:
    async def save(_: object) -> None:
        """Nothing is kept."""

    return Book(TRIGGER, {}, {}, save, lambda *_: None)


class Asking:
    """What is told of a schedule `s`."""

    def __init__(self, world: World, cron: Schedules) -> None:
        self._control = CronControl(cron, no_triggers(), world.stores.now_ms)

    async def last(self) -> tuple[float | None, str | None, int, float | None]:
        shown = await self._control.operations["cron.show"](Fields({"name": "s"}))
        (listed,) = (await self._control.operations["cron.list"](Fields({})))["schedules"]
        assert listed == shown
        at, missed = (
            None if ms is None else (ms - START_MS) / 1000
            for ms in (shown["last_ms"], shown["missed_ms"])
        )
        return at, shown["last_state"], shown["missed_total"], missed


async def test_what_became_of_the_last_tick_is_told(world: World, mock_clock: MockClock) -> None:
    cron = world.cron(s=TEN)
    asking = Asking(world, cron)
    await cron.look()
    assert await asking.last() == (None, None, 0, None)
    world.passes(11)
    await cron.look()
    assert await asking.last() == (10, "waiting", 0, None)
    await deliver_all(world.stores)
    assert await asking.last() == (10, "done", 0, None)
    looks = world.store.looks
    assert await asking.last() == (10, "done", 0, None)
    # What is done stays done: nobody is asked again.
    assert world.store.looks == looks
    world.passes(10)
    world.store.is_away = True
    assert await asking.last() == (20, None, 0, None)
    world.store.is_away = False
    rows = await world.stores.cold.acquire("q", b"L" * 16, 9, 999, 60)
    assert await asking.last() == (20, "started", 0, None)
    assert len(rows) == 1


@pytest.mark.parametrize(
    "missed, last", [("run_once", (100, "waiting", 9, 90)), ("skip", (100, "missed", 10, 100))]
)
async def test_what_was_missed_is_told_in_this_life_and_the_next(
    world: World, mock_clock: MockClock, missed: str, last: tuple[float, str, int, float]
) -> None:
    schedule = {**TEN, "missed": missed}
    await world.cron(s=schedule).look()
    world.passes(101)
    for _ in range(2):
        cron = world.cron(s=schedule)
        await cron.look()
        assert await Asking(world, cron).last() == last
    # It goes on, and the next one is not missed.
    world.passes(10)
    await cron.look()
    assert await Asking(world, cron).last() == (110, "waiting", *last[2:])
    disabled = world.cron(s={**schedule, "enabled": False})
    await disabled.look()
    assert await Asking(world, disabled).last() == (None, None, 0, None)
