"""`replace`: what another daemon has in line for warm is asked back, and given, unless it has
started. Two daemons' sides of one PostgreSQL, each with a warm queue of its own."""

from collections.abc import AsyncIterator, Collection, Mapping
from functools import partial

import pytest
import trio

from actors.keys.recall import SILENT_S, Recall, Recalling, RecallQuestion
from actors.keys.take_back import TakingBack
from actors.model.keys import KeyRule, Offer
from actors.ports.tiers import StoreUnavailable
from actors.tiers.line import Promotion
from actors.tiers.promoter import slice_of
from actors.tiers.warm import MemoryWarm
from actors.workers.settlement import NO_LIMITS
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.store import PostgresCold, PostgresSettings
from forebay.keyed import KeyOutcome
from forebay.run import Run, encode_run, read_head
from tests.conformance.cold_stores import PLENTY
from tests.conformance.postgres_stores import TIMEOUT_S, PostgresStores
from tests.rig.tiers_alone import make_tiers

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome
LOCK = b"L" * 16


def rule(_: str) -> KeyRule:
    return KeyRule("replace")


def offered(*keys: bytes, payload: bytes = b"new") -> Offer:
    data = encode_run([payload] * len(keys), queue="q", keys=keys)
    return Offer(Run(read_head(data), data))


class Side:
    """A daemon, as far as it acquires rows and takes them back."""

    def __init__(self, cold: PostgresCold, recalling: Recalling) -> None:
        self.cold, self.recalling = cold, recalling
        self.line, self.warm = Promotion(), MemoryWarm(None)
        tiers = make_tiers(self.warm, cold)
        tiers.states.of("q").line = self.line
        self.taking_back = TakingBack(tiers, rule, recalling)

    async def acquire(self) -> None:
        rows = await self.cold.acquire("q", LOCK, PLENTY, PLENTY, 3600)
        self.line.join([slice_of(row, LOCK) for row in rows])

    async def offer(self, *keys: bytes) -> list[KeyOutcome]:
        new = [offered(key) for key in keys]
        await self.taking_back.make_way(new)
        return [KeyOutcome(outcomes[0]) for outcomes in await self.cold.offer(new)]


Pair = tuple[Side, Side]


def wake(sides: list[Side], which: int, said: str) -> None:
    sides[which].recalling.wake(said)


@pytest.fixture
async def pair(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    # Who can answer has the time to.
    monkeypatch.setattr("actors.keys.recall.RECALL_S", 60.0)
    async with Bridge() as bridge:
        stores = PostgresStores(bridge)
        await stores.cold.open()
        sides: list[Side] = []
        try:
            for number in (1, 2):
                cold = PostgresCold(
                    PostgresSettings(stores.url, TIMEOUT_S, schema=stores.schema),
                    bytes([number]) * 16,
                    bridge,
                    partial(wake, sides, number - 1),
                    now_ms=stores.now_ms,
                )
                await cold.open()
                cold.keep_keys(rule)
                sides.append(Side(cold, Recalling(cold.recalls)))
                nursery.start_soon(cold.listen)
                await cold.wakes.listening.wait()
            await sides[0].cold.offer([offered(b"a", b"b", b"c", payload=b"old")])
            yield sides[0], sides[1]
        finally:
            with trio.CancelScope(shield=True):
                for side in sides:
                    await side.cold.close()
                await stores.drop()


async def test_what_another_daemon_has_in_line_is_given_back_and_replaced(
    pair: Pair, nursery: trio.Nursery
) -> None:
    holder, asker = pair
    await holder.acquire()
    nursery.start_soon(holder.recalling.run, holder.taking_back.take_back)
    assert await asker.offer(b"b") == [UPDATED]
    assert holder.line.items == 2
    totals = (await asker.cold.totals())["q"]
    assert (totals.accepted, totals.deleted, totals.held) == (4, 1, 3)
    # Nothing is left of the question.
    assert not await holder.cold.recalls.asked()


async def test_what_has_started_there_is_a_conflict(pair: Pair, nursery: trio.Nursery) -> None:
    holder, asker = pair
    await holder.acquire()
    await holder.warm.enter("q", holder.line.withdraw(), NO_LIMITS)
    assert await holder.warm.lease("q", PLENTY, PLENTY, 60)
    nursery.start_soon(holder.recalling.run, holder.taking_back.take_back)
    assert await asker.offer(b"b") == [CONFLICT]
    assert (await asker.cold.totals())["q"].held == 3


async def test_who_does_not_answer_is_a_conflict_and_not_asked_again_soon(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, asker = pair
    monkeypatch.setattr("actors.keys.recall.RECALL_S", 0.05)
    await holder.acquire()
    assert await asker.offer(b"b") == [CONFLICT]
    wanted = await asker.cold.started("q", [b"b"])
    everybody = await asker.cold.recalls.ask("q", wanted, ())
    assert [question.holder for question in everybody] == [b"\1" * 16]
    assert not await asker.cold.recalls.ask("q", wanted, [b"\1" * 16])
    assert await asker.offer(b"b") == [CONFLICT]
    # The one that was asked by hand is all that it hears of.
    assert [recall.number for recall in await holder.cold.recalls.asked()] == [everybody[0].number]


class Asked(list[Recall]):
    """Questions, of which so many are told of at once."""

    def __init__(self, recalls: list[Recall], at_once: int) -> None:
        super().__init__(recalls)
        self._at_once = at_once
        self.answered: list[list[int]] = []

    async def asked(self) -> list[Recall]:
        return self[: self._at_once]

    async def answer(self, numbers: Collection[int]) -> None:
        self.answered.append(list(numbers))
        self[:] = [recall for recall in self if recall.number not in numbers]

    async def ask(
        self, queue: str, wanted: Mapping[bytes, int], silent: Collection[bytes]
    ) -> list[RecallQuestion]:
        raise AssertionError("this daemon answers, and asks nothing")

    async def unanswered(self, numbers: Collection[int]) -> set[int]:
        raise AssertionError("this daemon answers, and asks nothing")

    async def forget(self, numbers: Collection[int]) -> None:
        raise AssertionError("this daemon answers, and asks nothing")


async def test_many_questions_are_answered_in_few_steps_and_all_of_them() -> None:
    recalls = Asked([Recall(n, "pq"[n % 2], {b"r%d" % (n // 4): 1 << n % 4}) for n in range(20)], 8)
    recalling = Recalling(recalls)
    given: list[tuple[str, dict[bytes, int]]] = []

    async def give_back(queue: str, wanted: Mapping[bytes, int]) -> dict[bytes, int]:
        given.append((queue, dict(wanted)))
        return {}

    await recalling.answer(give_back)
    assert sorted(number for step in recalls.answered for number in step) == list(range(20))
    assert len(recalls.answered) == len(given) == 6
    assert given[0] == ("p", {b"r0": 0b101, b"r1": 0b101})


class Silent:
    """Questions that nobody answers."""

    def __init__(self) -> None:
        self.asked_but: list[set[bytes]] = []
        self.forgotten: list[int] = []

    async def ask(
        self, queue: str, wanted: Mapping[bytes, int], silent: Collection[bytes]
    ) -> list[RecallQuestion]:
        self.asked_but.append(set(silent))
        return [] if silent else [RecallQuestion(7, b"h")]

    async def unanswered(self, numbers: Collection[int]) -> set[int]:
        return set(numbers)

    async def asked(self) -> list[Recall]:
        raise StoreUnavailable("nobody asks")

    async def answer(self, numbers: Collection[int]) -> None: ...

    async def forget(self, numbers: Collection[int]) -> None:
        self.forgotten += numbers


async def test_a_silent_daemon_is_asked_again_after_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    recalls = Silent()
    recalling = Recalling(recalls)
    for pause_s in (0.0, SILENT_S, 0.0):
        await recalling.recall("q", {b"r": 1})
        await trio.sleep(pause_s)
    assert recalls.asked_but == [set(), {b"h"}, set()]
    assert recalls.forgotten == [7, 7]


async def test_a_promoter_that_has_given_back_rests_and_works_most_of_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    line, rested_s = Promotion(), 0.0
    for _ in range(1000):
        line.rest(0.25)
        rested_s += 0.01 * (line.rests_until > trio.current_time())
        await trio.sleep(0.01)
    assert 1.5 < rested_s < 2.5
