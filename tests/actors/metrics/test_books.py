"""Whatever happens, in whatever order: the books balance, and every item ends exactly once.

Hypothesis writes scripts of pushes, verdicts, pauses, changes of dead letters, restarts and
crashes; they are played on the real parts, with limits so small that every queue goes cold and
warm again. After every step the books must add up, and no warm queue be above its limits. In the
end everything is let through, and everything that was accepted must be accounted for.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actors.model.outcomes import Failure
from actors.ports.tiers import DeadFilter
from forebay.errors import Refused
from tests.rig.rig import DRAIN_S, Rig, running
from tests.rig.scripted import Verdict, all_fail, all_good, items_fail

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Syncs take no time there; nothing here is about power."""
QUEUES = ("a", "b")
REFUSED = Failure("refused", blames_destination=False)
GONE = Failure("gone", is_permanent=True)

VERDICTS: dict[str, Verdict] = {
    "good": all_good,
    "fail": all_fail(REFUSED),
    "gone": all_fail(GONE),
    "odd ones fail": items_fail(lambda item: item.payload[0] % 2 == 1, REFUSED),
    "odd ones fail once": items_fail(
        lambda item: item.payload[0] % 2 == 1 and not item.attempt, REFUSED
    ),
    "odd ones are gone": items_fail(lambda item: item.payload[0] % 2 == 1, GONE),
    "some go to cold": items_fail(
        lambda item: item.payload[0] % 3 == 0 and not item.attempt,
        Failure("busy", retry_after_s=100),
    ),
}

queues = st.sampled_from(QUEUES)
flows = st.sampled_from(["f", "g"])
Step = tuple[Any, ...]

steps = st.one_of(
    st.tuples(
        st.just("push"),
        queues,
        st.integers(1, 12),
        st.sampled_from([0, 5]),
        flows,
        st.sampled_from([0, 0, 0, 0, 30, 100]),
    ),
    st.tuples(st.just("push many"), queues, st.integers(2, 10), st.integers(1, 6)),
    st.tuples(st.just("verdict"), queues, st.sampled_from(sorted(VERDICTS))),
    st.tuples(st.just("hold"), queues),
    st.tuples(st.just("answer"), queues, st.sampled_from(sorted(VERDICTS))),
    st.tuples(st.just("open up"), queues),
    st.tuples(st.just("pause"), queues),
    st.tuples(st.just("resume"), queues),
    st.tuples(st.just("pause flow"), queues, flows),
    st.tuples(st.just("resume flow"), queues, flows),
    st.tuples(st.just("retry dead"), queues),
    st.tuples(st.just("remove dead"), queues),
    st.tuples(st.just("advance"), st.sampled_from([35, 110])),
    st.just(("settle down",)),
    st.just(("restart",)),
    st.just(("crash",)),
)


class Player:
    """Plays a script, and knows what must still hold of it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.in_order: dict[tuple[str, int], list[str]] = {}
        """What is to be tried first in this order, by queue and priority."""
        self.has_order = set(QUEUES)
        self.may_repeat = False

    async def play(self, script: list[Step]) -> None:
        for step in script:
            await self.step(step)
            await self.rig.stats()
        await self.let_all_through()
        await self.check()

    async def step(self, step: Step) -> None:
        rig = self.rig
        match step:
            case ("push", queue, items, priority, flow, due_s):
                ids = await rig.push(items, queue, priority=priority, flow=flow, due_s=due_s)
                if not due_s:
                    self.in_order.setdefault((queue, priority), []).extend(ids)
            case ("push many", queue, runs, items):
                for _ in range(runs):
                    ids = await rig.push(items, queue, priority=5)
                    self.in_order.setdefault((queue, 5), []).extend(ids)
            case ("verdict", queue, verdict):
                rig.to(queue).verdict = VERDICTS[verdict]
            case ("hold", queue):
                rig.to(queue).is_patient = True
            case ("answer", queue, verdict):
                if rig.to(queue).items_waiting:
                    rig.to(queue).answer(VERDICTS[verdict])
            case ("open up", queue):
                rig.to(queue).open_up(rig.to(queue).verdict)
            case ("pause", queue):
                await self.rig.pause(queue)
            case ("resume", queue):
                await self.resume(queue=queue)
            case ("pause flow", queue, flow):
                # What is set aside comes later than what was pushed after it.
                self.has_order.discard(queue)
                await self.rig.pause(queue, flow)
            case ("resume flow", queue, flow):
                await self.resume(queue=queue, flow=flow)
            case ("retry dead", queue):
                await rig.control("dead.retry", which={"queue": queue})
            case ("remove dead", queue):
                await rig.control("dead.remove", which={"queue": queue})
            case ("advance", seconds):
                await self.advance(seconds)
            case ("settle down",):
                for _ in range(5):
                    await rig.stats()
            case ("restart",):
                await self.restart()
            case ("crash",):
                self.may_repeat = True
                self.has_order.clear()
                await rig.crash()
            case _:
                raise AssertionError(step)

    async def resume(self, **fields: Any) -> None:
        # Nothing may have been pushed to the queue yet.
        with suppress(Refused):
            await self.rig.control("queues.resume", **fields)

    async def advance(self, seconds: float) -> None:
        """Not while an outcome is being recorded: such a lease lasts for a minute only."""

        def is_calm(report: dict[str, Any]) -> bool:
            return all(
                report["queues"].get(queue, {}).get("running", 0)
                == self.rig.to(queue).items_waiting
                for queue in QUEUES
            )

        await self.rig.until(is_calm)
        self.rig.advance(seconds)

    async def restart(self) -> None:
        """Sends that hang are cut off; what was taken by then may come again."""
        is_held = any(self.rig.to(queue).is_patient for queue in QUEUES)
        if is_held:
            self.may_repeat = True
        await self.rig.restart(drain_s=0 if is_held else DRAIN_S)

    async def let_all_through(self) -> None:
        rig = self.rig
        for queue in QUEUES:
            rig.to(queue).open_up(all_good)
            for flow in (None, "f", "g"):
                await self.resume(queue=queue, flow=flow)
        await self.advance(200)
        await rig.until(lambda report: report["daemon"]["held"] == 0)

    async def check(self) -> None:
        rig = self.rig
        books = await rig.books(None)
        accepted = set(rig.accepted)
        taken = rig.to("a").taken + rig.to("b").taken
        dead = {letter.id for letter in await rig.dead()}
        assert books.get("accepted", 0) == len(accepted)
        assert books.get("dead", 0) == len(dead)
        assert taken.keys() <= accepted
        assert dead <= accepted
        missing = accepted - taken.keys() - dead
        assert len(missing) <= books.get("deleted", 0)
        if not self.may_repeat:
            assert not [item_id for item_id, times in taken.items() if times > 1]
            assert not taken.keys() & dead
            assert books.get("delivered", 0) == len(taken)
            assert books.get("deleted", 0) == len(missing)
        for (queue, priority), ids in self.in_order.items():
            if queue in self.has_order:
                wanted = set(ids)
                tried = [one for one in rig.to(queue).first_attempts() if one in wanted]
                assert tried == ids, (queue, priority)
        assert await rig.life.sqlite.unconfirmed() == []
        totals = await rig.life.sqlite.totals()
        assert all(of_queue.held == of_queue.runs == 0 for of_queue in totals.values())
        count = await rig.life.sqlite.dead_letters.count(DeadFilter(), 10**6)
        assert count == len(dead)


async def play(script: list[Step], limit: int, batch_items: int) -> None:
    keys = {"warm_max_items": limit, "max_retries": 2, "lease_time": "7d"}
    options: dict[str, Any] = {"batch_items": batch_items, "cold": {"acquire_timeout": "1d"}}
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        async with running(Path(directory), dict.fromkeys(QUEUES, keys), **options) as rig:
            for queue in QUEUES:
                # So that it can be paused before anything was pushed.
                rig.to(queue)
            await Player(rig).play(script)


@settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    script=st.lists(steps, min_size=3, max_size=25),
    limit=st.integers(5, 50),
    batch_items=st.sampled_from([1, 3, 10, 100]),
)
@example(
    script=[("hold", "a"), ("push many", "a", 10, 6), ("crash",), ("crash",), ("restart",)],
    limit=5,
    batch_items=3,
)
@example(
    script=[
        ("verdict", "a", "some go to cold"),
        ("push many", "a", 10, 6),
        ("settle down",),
        ("pause flow", "a", "f"),
        ("push", "a", 12, 0, "f", 0),
        ("advance", 110),
        ("crash",),
        ("retry dead", "a"),
    ],
    limit=7,
    batch_items=3,
)
def test_every_item_is_accounted_for(script: list[Step], limit: int, batch_items: int) -> None:
    trio.run(play, script, limit, batch_items)


def test_refusals_are_not_counted() -> None:
    """What was refused is nobody's."""

    async def refused() -> None:
        with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
            async with running(Path(directory), {"q": {}}, auto_create_queues=False) as rig:
                with pytest.raises(Refused, match="none is created"):
                    await rig.push(3, "unknown")
                assert (await rig.stats())["daemon"]["accepted"] == 0

    trio.run(refused)
