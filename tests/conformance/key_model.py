"""A model of unique keys, and scripts of what may happen to them, against any store.

The model is a dictionary of keys and a list of items with where each is. A script is played on
both; after every step the store must say the same of every key, and its books must add up.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from actors.model.keys import Holder, ItemRef, KeyRule, Phase, Policy, decide
from actors.ports.tiers import DeadFilter, RowOutcome
from forebay.ids import format_item_id
from forebay.keyed import KeyOutcome
from tests.conformance.cold_keys import offer
from tests.conformance.cold_stores import ColdStores, acquire, check_books, number, part_of

KEYS = [b"", b"a", b"b", b"c", b"d"]
WINDOW_MS = 50

Step = tuple[Any, ...]
STEPS = st.one_of(
    st.tuples(
        st.just("offer"),
        st.lists(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), min_size=1, max_size=3),
        st.sampled_from([0, 20]),
    ),
    st.tuples(st.just("again"), st.integers(0, 10)),
    st.tuples(st.just("swap"), st.sampled_from(KEYS[1:]), st.integers(0, 10)),
    # What becomes of each item of a row: delivered, tried again, dead, or left alone.
    st.tuples(st.just("work"), st.integers(1, 4), st.lists(st.sampled_from("drxl"), max_size=8)),
    st.tuples(st.just("remove"), st.integers(0, 10)),
    st.tuples(st.just("retry"), st.integers(0, 10)),
    st.tuples(st.just("drop"), st.sampled_from(KEYS[1:])),
    st.tuples(st.just("forget")),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, WINDOW_MS])),
    st.tuples(st.just("crash")),
)
SCRIPTS = st.tuples(st.sampled_from(["ignore", "reject", "replace"]), st.lists(STEPS, max_size=25))


@dataclass
class Thing:
    """An item of the model."""

    ref: ItemRef
    key: bytes
    due_ms: int = 0
    """When it is due, if it was offered for a time and has not been tried since."""
    phase: Phase = "waiting"
    until_ms: int | None = None


@dataclass
class KeyModel:
    policy: Policy
    things: dict[ItemRef, Thing] = field(default_factory=dict)
    holders: dict[bytes, Thing] = field(default_factory=dict)
    deleted: int = 0
    accepted: int = 0

    def holder(self, key: bytes, now: int) -> Holder | None:
        thing = self.holders.get(key)
        if thing is None or (thing.until_ms is not None and thing.until_ms <= now):
            return None
        return Holder(thing.ref, thing.phase, thing.until_ms)

    def offer(
        self, ref: ItemRef, key: bytes, now: int, only_if: ItemRef | None, due_ms: int
    ) -> KeyOutcome:
        holder = self.holder(key, now) if key else None
        # All items of a key have the same payload.
        is_same = holder is not None and 0 < due_ms == self.holders[key].due_ms
        outcome = decide(holder, ref, self.policy, now, only_if, is_same=is_same)
        if outcome in (KeyOutcome.CREATED, KeyOutcome.UPDATED):
            if outcome is KeyOutcome.UPDATED:
                self.delete(self.holders[key])
            self.accepted += 1
            self.things[ref] = Thing(ref, key, due_ms)
            if key:
                self.holders[key] = self.things[ref]
        return outcome

    def delete(self, thing: Thing) -> None:
        self.deleted += 1
        del self.things[thing.ref]
        if self.holders.get(thing.key) is thing:
            del self.holders[thing.key]

    def deliver(self, ref: ItemRef, now: int) -> None:
        thing = self.things.pop(ref)
        thing.phase, thing.until_ms = "done", now + WINDOW_MS

    def of_phase(self, phase: Phase) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.phase == phase]


class KeyPlayer:
    """Plays a script on a store and on the model."""

    def __init__(self, stores: ColdStores, policy: Policy) -> None:
        self._stores = stores
        self._model = KeyModel(policy)
        self._offers: list[tuple[Any, list[KeyOutcome]]] = []
        self._begin()

    def _begin(self) -> None:
        rule = KeyRule(self._model.policy, WINDOW_MS)
        self._stores.cold.keep_keys(lambda _: rule)

    async def play(self, script: list[Step]) -> None:
        for name, *values in script:
            await getattr(self, f"_{name}")(*values)
            await self._compare()

    async def _compare(self) -> None:
        await check_books(self._stores)
        for key in KEYS[1:]:
            expected = self._model.holder(key, self._stores.now_ms())
            found = await self._stores.cold.key("q", key)
            if expected is None:
                assert found is None, key
            else:
                assert found is not None, key
                assert (found.item, found.phase) == (expected.item, expected.phase), key
                assert found.until_ms == expected.until_ms
        totals = (await self._stores.cold.totals()).get("q")
        if totals is not None:
            model = self._model
            dead = len(model.of_phase("dead"))
            assert (totals.accepted, totals.deleted) == (model.accepted, model.deleted)
            assert (totals.dead, totals.held) == (dead, len(model.things) - dead)

    async def _offer(self, runs: list[list[bytes]], delay_ms: int) -> None:
        now = self._stores.now_ms()
        due_ms = now + delay_ms if delay_ms else 0
        offers = [offer(*keys, due_ms=due_ms) for keys in runs]
        await self._put(offers, [None] * len(offers))

    async def _swap(self, key: bytes, which: int) -> None:
        things = list(self._model.things.values())
        ref = things[which % len(things)].ref if things else ItemRef(b"n" * 16, 0)
        await self._put([offer(key, only_if=ref)], [ref])

    async def _put(self, offers: list[Any], swaps: list[ItemRef | None]) -> None:
        now = self._stores.now_ms()
        answers = await self._stores.cold.offer(offers)
        for one, outcomes, only_if in zip(offers, answers, swaps, strict=True):
            head = one.run.head
            expected = [
                self._model.offer(ItemRef(head.run_id, index), key, now, only_if, head.due_ms)
                for index, key in enumerate(one.run.keys())
            ]
            assert list(outcomes) == expected
            self._offers.append((one, expected))

    async def _again(self, which: int) -> None:
        if self._offers:
            one, expected = self._offers[which % len(self._offers)]
            (outcomes,) = await self._stores.cold.offer([one])
            assert list(outcomes) == expected

    async def _work(self, items_max: int, fates: list[str]) -> None:
        lock, now, model = number(), self._stores.now_ms(), self._model
        rows = await acquire(self._stores, lock, items_max=items_max)
        outcomes, left = [], list(fates)
        for row in rows:
            places = [index for index in range(row.head.count) if row.bits >> index & 1]
            moved, delivered, moved_bits = [], 0, 0
            for index in places:
                # Bodies of this queue are never cut: they are far too small.
                ref, bit = ItemRef(row.head.run_id, index), 1 << index
                fate = left.pop(0) if left else "l"
                model.things[ref].phase = "started"
                if fate == "d":
                    delivered |= bit
                    model.deliver(ref, now)
                elif fate in "rx":
                    moved.append(part_of(row, bit, is_dead=fate == "x", attempt=1))
                    moved_bits |= bit
                    model.things[ref].phase = "dead" if fate == "x" else "waiting"
                    model.things[ref].due_ms = 0
            outcomes.append(RowOutcome(row.row, lock, delivered, tuple(moved), moved_bits))
        assert all(await self._stores.cold.settle(outcomes))

    async def _remove(self, which: int) -> None:
        dead = self._model.of_phase("dead")
        if dead:
            thing = dead[which % len(dead)]
            await self._stores.dead.remove(DeadFilter(ids=(format_item_id(*thing.ref),)), 10)
            self._model.delete(thing)

    async def _retry(self, which: int) -> None:
        dead = self._model.of_phase("dead")
        if dead:
            thing = dead[which % len(dead)]
            await self._stores.dead.retry(DeadFilter(ids=(format_item_id(*thing.ref),)), 10)
            thing.phase = "waiting"

    async def _drop(self, key: bytes) -> None:
        expected = self._model.holder(key, self._stores.now_ms())
        found = await self._stores.cold.drop_key("q", key)
        assert (found is None) == (expected is None)
        thing = self._model.holders.get(key)
        if found is not None and thing is not None:
            if thing.phase == "waiting":
                self._model.delete(thing)
            elif thing.phase == "done":
                del self._model.holders[key]

    async def _forget(self) -> None:
        while await self._stores.cold.forget_keys():
            pass

    async def _wait(self, ms: int) -> None:
        self._stores.advance(ms)

    async def _crash(self) -> None:
        # What was delivered may come again after a crash, unless it was made durable.
        await self._stores.cold.sync()
        await self._stores.crash()
        await self._stores.release_all()
        self._begin()
        for thing in self._model.of_phase("started"):
            thing.phase = "waiting"
