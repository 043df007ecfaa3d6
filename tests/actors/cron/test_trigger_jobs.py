"""QUEUE triggers between real tiers: what is pushed is claimed, and ends with its job, whatever
happens in between."""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from actors.config.triggers import KeptTriggers, QueueTrigger
from actors.control.items import Items
from actors.cron import trigger_jobs, trigger_watch
from actors.cron import triggers as triggers_module
from actors.cron.trigger_ports import TriggerPorts
from actors.cron.triggers import Triggers
from actors.model.outcomes import Failure
from actors.ports.tiers import Ending
from actors.ports.trigger_jobs import JOBS_PAGE, JobList, JobWatch, Poll, Polled, TriggerStore
from daemon.app import Daemon
from forebay.errors import Refused
from tests.eventually import at_once, eventually
from tests.rig.kept import kept_in_memory
from tests.rig.rig import Rig, running
from tests.rig.scripted import all_fail, all_good

T = TypeVar("T")

THREE = {"type": "QUEUE", "queue": "q", "target": "jobs", "batch_size": 3, "polling_interval": "1s"}


class Crashed(BaseException):
    """The process ends here; what catches bugs does not catch this."""


class Crashing:
    """A store whose polls are counted, and one of which is the life's last."""

    def __init__(self, store: TriggerStore, last: int, *, is_taken: bool) -> None:
        self._store = store
        self._left = last
        self._is_taken = is_taken

    async def poll(self, poll: Poll) -> Polled:
        return await self._step(lambda: self._store.poll(poll))

    async def jobs(self, after: bytes = b"", limit: int = JOBS_PAGE) -> JobList:
        return await self._store.jobs(after, limit)

    def watch(self, watch: JobWatch) -> None:
        self._store.watch(watch)

    async def died(self, ids: Sequence[str]) -> set[str]:
        return await self._store.died(ids)

    async def end(self, run_id: bytes) -> None:
        await self._store.end(run_id)

    async def let_go(self, name: str, holder: bytes) -> None:
        await self._store.let_go(name, holder)

    async def pause(self, name: str, *, is_paused: bool) -> None:
        await self._store.pause(name, is_paused=is_paused)

    async def _step(self, step: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self._left == 0 and not self._is_taken:
            raise Crashed
        result = await step()
        if self._left == 0:
            raise Crashed
        return result


class Neighbours(TriggerPorts):
    """The daemon's; what triggers report is written down."""

    def __init__(self, world: "World", daemon: Daemon) -> None:
        items = Items(daemon.tiers, daemon.workers, daemon.observers.history, 1000)
        super().__init__(daemon.tiers, daemon.catalogue, daemon.observers, items)
        self._world = world

    async def withdraw(self, item_id: str) -> None:
        if self._world.meanwhile is not None:
            await self._world.meanwhile(item_id)
        await super().withdraw(item_id)

    def failed(self, name: str, queue: str, error: str) -> None:
        self._world.failures.append(error)

    def dead(self, queue: str, error: str, items: int, ids: Sequence[str]) -> None:
        self._world.dead.append((queue, error, items, *ids))


class World:
    """The triggers of a rig's lives."""

    def __init__(self, rig: Rig, last: int = 0, *, is_taken: bool = False) -> None:
        self.rig = rig
        self.kept = kept_in_memory(KeptTriggers())
        self.failures: list[str] = []
        self.dead: list[tuple[str | int, ...]] = []
        """Who is told of dead letters: queue, error, how many, and the ids of some."""
        self.crashes = 0
        self.meanwhile: Callable[[str], Awaitable[None]] | None = None
        """What happens to a job that is about to be taken back."""
        self.triggers = self.live(last, is_taken=is_taken)

    def live(self, last: int = 0, *, is_taken: bool = False) -> Triggers:
        life = self.rig.life

        daemon = life.daemon
        ports = Neighbours(self, daemon)
        check = daemon.cron.check_trigger
        configured = {"t": QueueTrigger.model_validate(THREE)}
        store = Crashing(life.sqlite.triggers, last, is_taken=is_taken)
        return Triggers(configured, self.kept, check, store, b"", ports)

    async def crash(self) -> None:
        self.crashes += 1
        await self.rig.crash()
        self.triggers = self.live()

    async def look(self) -> None:
        """Another second has passed."""
        self.rig.advance(1)
        try:
            await self.triggers.look()
        except Crashed:
            await self.crash()

    async def until_books(self, queue: str, **wanted: int) -> None:
        async def check() -> None:
            with at_once():
                await self.look()
                books = await self.rig.books(queue)
            assert {name: books.get(name, 0) for name in wanted} == wanted, books

        await eventually(check)

    async def until_failed(self, times: int = 1, *, is_hurried: bool = False) -> None:
        """Until so many jobs have failed. A trigger that fails waits; an operator does not."""

        async def check() -> None:
            with at_once():
                await self.look()
                if is_hurried:
                    await self.triggers.run_now("t")
            assert len(self.failures) >= times, self.failures

        await eventually(check)

    def jobs(self) -> dict[str, list[str]]:
        """What each job that came to the target has listed, by the job's id."""
        items = [item for batch in self.rig.to("jobs").batches for item in batch.items]
        return {item.id: json.loads(item.payload)["ids"] for item in items}


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look looks at everything: the store's clock alone says when it is time."""
    for module in (triggers_module, trigger_jobs, trigger_watch):
        for name in ("LIVE_S", "LOOK_S"):
            monkeypatch.setattr(module, name, 0.0, raising=False)


async def test_what_was_pushed_is_done_with_its_job(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        world = World(rig)
        rig.to("jobs").is_patient = True
        await world.look()
        ids = await rig.push(4)
        await rig.until_in_cold(4)
        await world.look()
        await rig.to("jobs").until_begun(1)
        await world.look()
        assert await rig.books("q") == {"accepted": 4, "held": 4, "cold": 4}
        rig.to("jobs").open_up()
        await world.until_books("q", delivered=4)
        assert sorted(map(len, world.jobs().values())) == [1, 3]
        assert sorted(id_ for each in world.jobs().values() for id_ in each) == sorted(ids)
        # The queue's own handler has had nothing of it.
        assert rig.to("q").batches == []


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_crash_at_any_poll_loses_nothing_and_claims_nothing_twice(
    tmp_path: Path, is_taken: bool
) -> None:
    async with running(tmp_path) as rig:
        world = World(rig)
        # The queue is held; from here on polls are counted.
        await world.look()
        ids: list[str] = []
        # Three polls at least.
        for last in range(1, 4):
            ids += await rig.push(7)
            await rig.until_in_cold(7)
            world.triggers = world.live(last, is_taken=is_taken)
            await world.until_books("q", delivered=len(ids), held=0)
            await rig.until_books("jobs", held=0)
            listed = [id_ for each in world.jobs().values() for id_ in each]
            # Each in one job, though a job may come twice.
            assert sorted(listed) == sorted(ids)
            assert (await rig.life.sqlite.triggers.jobs()).jobs == []
            assert await rig.life.sqlite.streams() == [("q", "trigger/t")]
            assert await rig.books("jobs") == {"accepted": 3 * last, "delivered": 3 * last}
        assert world.crashes == 3


async def test_a_job_that_was_running_when_the_life_ended_comes_again_as_the_same(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        world = World(rig)
        rig.to("jobs").is_patient = True
        await world.look()
        await rig.push(3)
        await rig.until_in_cold(3)
        await world.look()
        await rig.to("jobs").until_begun(1)
        await world.crash()
        await rig.to("jobs").until_begun(2)
        await world.look()
        assert (await rig.books("q"))["held"] == 3
        rig.to("jobs").open_up()
        await world.until_books("q", delivered=3)
        assert len(world.jobs()) == 1


async def test_a_dead_jobs_items_are_in_the_next_job(tmp_path: Path) -> None:
    async with running(tmp_path, {"jobs": {"max_retries": 0}}) as rig:
        world = World(rig)
        rig.to("jobs").verdict = all_fail(Failure("no", blames_destination=False))
        await world.look()
        ids = await rig.push(3)
        await rig.until_in_cold(3)
        await world.look()
        await rig.until_books("jobs", dead=1)
        assert await rig.books("q") == {"accepted": 3, "held": 3, "cold": 3}
        rig.to("jobs").verdict = all_good
        await world.triggers.run_now("t")
        await world.until_books("q", delivered=3)
        assert list(world.jobs().values()) == [ids, ids]


async def test_items_that_no_job_can_do_are_dead_letters_of_their_queue(tmp_path: Path) -> None:
    queues = {"jobs": {"max_retries": 0}, "q": {"max_retries": 1}}
    async with running(tmp_path, queues) as rig:
        world = World(rig)
        rig.to("jobs").verdict = all_fail(Failure("no", blames_destination=False))
        await world.look()
        ids = await rig.push(3)
        await rig.until_in_cold(3)
        await world.until_failed(2, is_hurried=True)
        assert "its items are given back" in world.failures[0]
        assert "its items are dead letters now" in world.failures[1]
        ((queue, error, items, *named),) = world.dead
        assert (queue, items, named) == ("q", 3, ids)
        assert "trigger t: job " in str(error)
        assert await rig.books("q") == {"accepted": 3, "dead": 3}
        shown = await rig.control("items.show", id=ids[0])
        assert (shown["state"], shown["attempt"], len(shown["errors"])) == ("FAILED", 2, 2)
        # Mended, and tried again.
        rig.to("jobs").verdict = all_good
        await rig.control("items.change", id=ids[0], state="QUEUED")
        assert (await rig.control("dead.retry", which={"queue": "q"}))["done"] == 2
        await world.triggers.run_now("t")
        await world.until_books("q", delivered=3)
        assert (await rig.books("q")).get("dead", 0) == 0


async def test_a_job_that_waits_too_long_is_withdrawn_from_wherever_it_is(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"jobs": {"handler": {"type": "pull"}}}) as rig:
        world = World(rig)
        await world.look()
        await rig.push(3)
        await rig.until_in_cold(3)
        await world.look()
        await rig.until_books("jobs", warm=1)
        rig.advance(3601)
        await world.until_failed()
        assert (await rig.books("jobs"))["deleted"] == 1
        assert (await rig.books("q")) == {"accepted": 3, "held": 3, "cold": 3}


async def test_a_job_that_dies_while_it_is_taken_back_keeps_its_letter(tmp_path: Path) -> None:
    async with running(tmp_path, {"jobs": {"handler": {"type": "pull"}}}) as rig:
        world = World(rig)

        async def dies(item_id: str) -> None:
            await rig.control("items.change", id=item_id, state="FAILED", error="too late")

        world.meanwhile = dies
        await world.look()
        await rig.push(3)
        await rig.until_in_cold(3)
        await world.look()
        await rig.until_books("jobs", warm=1)
        rig.advance(3601)
        await world.until_failed()
        assert "is dead: its items are given back" in world.failures[0]
        (letter,) = (await rig.control("dead.find", which={}))["letters"]
        assert "too late" in str(letter["errors"])
        assert (await rig.books("q")) == {"accepted": 3, "held": 3, "cold": 3}


async def test_a_dead_job_is_not_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path, {"jobs": {"max_retries": 0}}) as rig:
        world = World(rig)
        rig.to("jobs").verdict = all_fail(Failure("no", blames_destination=False))
        await world.look()
        ids = await rig.push(3)
        await rig.until_in_cold(3)
        await world.look()
        await rig.until_books("jobs", dead=1)
        (job,) = world.jobs()
        for op, fields in (
            ("dead.retry", {"which": {"ids": [job]}}),
            ("items.change", {"id": job, "state": "QUEUED"}),
            ("items.change", {"id": job, "state": "QUEUED", "payload": "another"}),
        ):
            with pytest.raises(Refused, match="its items were given back") as refused:
                await rig.control(op, **fields)
            assert refused.value.code == "CONFLICT"
        # And nothing of it was changed.
        shown = await rig.control("items.show", id=job, payload=True)
        assert shown["payload"] != "another"
        # Among others it is left out.
        assert (await rig.control("dead.retry", which={"queue": "jobs"}))["done"] == 0
        rig.to("jobs").verdict = all_good
        await world.triggers.run_now("t")
        await world.until_books("q", delivered=3)
        assert list(world.jobs().values()) == [ids, ids]
        assert await rig.books("jobs") == {"accepted": 2, "delivered": 1, "dead": 1}


async def test_what_consumers_give_back_is_claimed_like_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path, {"q": {"handler": {"type": "pull"}}}) as rig:
        world = World(rig)
        await rig.push(2)
        await rig.until_books("q", warm=2)
        (leased,) = await rig.life.warm.lease("q", 2, 1 << 20, 60.0)
        await world.look()
        assert await rig.life.warm.end("q", [Ending(leased.token, (leased.slice,))]) == [True]
        await world.until_books("q", delivered=2)
