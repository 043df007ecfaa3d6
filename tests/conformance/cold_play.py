"""Scripts of operations for the cold tier, written by Hypothesis and played on store and model.

A script names rows by number, counted among those that there are when its step is played, so that
any script makes sense. After every step all that can be seen must agree, and the books balance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from actors.model.slices import ItemError, indexes, item_bits
from actors.ports.tiers import ColdRow, DeadFilter, NewRow, RowOutcome, WrongClaim
from tests.conformance.cold_model import ColdModel, Now, Row
from tests.conformance.cold_stores import ColdStores, check_books, new_row, number
from tests.conformance.cold_stream_model import Consumer, StreamModel, seen_of

QUEUES = ("q", "other")
FLOWS = ("f", "g")
LOCKS = tuple(bytes([lock]) * 16 for lock in range(3))
ERRORS = ("Timeout", "refused")
WRITE = b"W" * 16
CONSUMERS = ("c", "d")

Step = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """What a new row is like."""

    queue: str
    flow: str
    priority: int
    items: int
    due_in_ms: int
    is_dead: bool
    parts: int
    """Rows that share the body, one item each where they are dead."""
    is_of_write: bool


_pick = st.integers(0, 7)
_queues = st.sampled_from(["q", "q", "q", "other"])
_picks = st.lists(_pick, max_size=4)
_kinds = st.lists(
    st.builds(
        Kind,
        queue=_queues,
        flow=st.sampled_from(FLOWS),
        priority=st.sampled_from([0, 5]),
        items=st.integers(1, 5),
        due_in_ms=st.sampled_from([0, 0, -5, 700]),
        is_dead=st.sampled_from([False, False, True]),
        parts=st.integers(1, 2),
        is_of_write=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
_except = st.sampled_from([frozenset[str](), frozenset({"f"})])
_filters = st.builds(
    DeadFilter,
    queue=st.sampled_from([None, *QUEUES]),
    flow=st.sampled_from([None, None, *FLOWS]),
    error=st.sampled_from([None, None, "TIME", "x"]),
)
_fates = st.one_of(
    st.just(["done"] * 5),
    st.lists(st.sampled_from(["done", "done", "stay", "again", "dead"]), min_size=5, max_size=5),
)
_outcomes = st.lists(
    st.tuples(_pick, st.sampled_from([0, 0, 0, 1]), _fates), min_size=1, max_size=3
)
_outcome_twice = st.booleans()

_hand_over = st.tuples(st.just("hand over"), _kinds)
_acquire_all = st.tuples(
    st.just("acquire"), _queues, st.sampled_from(LOCKS[:2]), st.just(100), st.just(10_000),
    st.just(60.0), st.just(frozenset[str]()),
)  # fmt: skip
_claim = st.tuples(
    st.just("claim"), _queues, st.sampled_from(CONSUMERS), st.sampled_from([0, 1, 1, 1, 2, -1]),
    st.sampled_from([0, 1, 4, 100, 100]),
)  # fmt: skip
_settle = st.tuples(st.just("settle"), _outcomes, _outcome_twice)
_step = st.one_of(
    _hand_over,
    _acquire_all,
    _settle,
    st.tuples(st.just("store"), _kinds),
    st.tuples(st.just("store again"), _pick),
    st.tuples(st.just("confirm"), _picks),
    st.tuples(st.just("forget"), _picks),
    st.tuples(
        st.just("acquire"),
        _queues,
        st.sampled_from(LOCKS),
        st.sampled_from([1, 4, 100]),
        st.sampled_from([1, 250, 10_000]),
        st.sampled_from([0.5, 60.0]),
        _except,
    ),
    st.tuples(st.just("renew"), st.lists(st.sampled_from(LOCKS), max_size=3, unique=True)),
    st.tuples(st.just("release"), st.sampled_from(LOCKS), _picks),
    st.tuples(st.just("advance"), st.sampled_from([1, 499, 700, 60_000])),
    st.tuples(st.just("step"), st.sampled_from([3_600_000, -3_600_000, 700, -700])),
    st.tuples(st.just("retry"), _filters, st.integers(1, 3)),
    st.tuples(st.just("remove"), _filters, st.integers(1, 3)),
    st.tuples(st.just("edit"), _pick),
    _claim,
    _claim,
    st.tuples(st.just("drop"), _queues, st.sampled_from(CONSUMERS)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("crash")),
)  # fmt: skip
# The ordinary course of things with anything in between: steps by chance alone seldom get far.
_round = st.tuples(
    st.lists(_step, max_size=2),
    st.tuples(_hand_over),
    st.lists(_step, max_size=2),
    st.one_of(st.tuples(_acquire_all), st.tuples(_claim)),
    st.lists(_step, max_size=2),
    st.one_of(st.tuples(_settle), st.tuples(_claim)),
)
scripts = st.lists(_round, min_size=2, max_size=6).map(
    lambda rounds: [step for parts in rounds for part in parts for step in part]
)


@dataclass
class Player:
    stores: ColdStores
    model: ColdModel = field(default_factory=ColdModel)
    made: list[NewRow] = field(default_factory=list)
    leased: dict[bytes, tuple[ColdRow, bytes]] = field(default_factory=dict)
    """As they were acquired last; some have run out since."""

    def __post_init__(self) -> None:
        self.streams = StreamModel(self.model)

    async def play(self, script: Sequence[Step]) -> None:
        for step in script:
            await self._take(step)
            await self._compare()

    async def _take(self, step: Step) -> None:
        cold, model, now = self.stores.cold, self.model, self._now()
        match step:
            case ("hand over", kinds):
                rows = self._make(kinds)
                await cold.store(rows)
                await cold.confirm([row.row for row in rows])
                model.store(rows)
                model.confirm([row.row for row in rows], now)
            case ("store", kinds):
                rows = self._make(kinds)
                await cold.store(rows)
                model.store(rows)
            case ("store again", pick):
                rows = _choose(self.made, [pick])
                await cold.store(rows)
                model.store(rows)
            case ("confirm", picks):
                ids = [row.row for row in _choose(self.made, picks)]
                await cold.confirm(ids)
                model.confirm(ids, now)
            case ("forget", picks):
                ids = [row.row for row in _choose(self.made, picks)]
                await cold.forget(ids)
                model.forget(ids)
            case ("acquire", queue, lock, items_max, bytes_max, lease_s, flows):
                got = await cold.acquire(queue, lock, items_max, bytes_max, lease_s, flows)
                lease_ms = round(lease_s * 1000)
                expected = model.acquire(queue, lock, items_max, bytes_max, lease_ms, now, flows)
                assert [_seen(row) for row in got] == [_expected(row) for row in expected]
                self.leased |= {row.row: (row, lock) for row in got}
            case ("renew", locks):
                assert await cold.renew(locks, 1.0) == model.renew(locks, 1000, now)
            case ("release", lock, picks):
                ids = _choose(list(self.leased), picks)
                await cold.release(lock, ids)
                model.release(lock, ids)
            case ("settle", choices, is_told_twice):
                outcomes = self._outcomes(choices, now.wall)
                for _ in range(1 + is_told_twice):
                    answers = await cold.settle(outcomes)
                    assert answers == [model.settle(outcome, now) for outcome in outcomes]
            case ("advance", ms):
                self.stores.advance(ms)
            case ("step", ms):
                self.stores.step(ms)
            case ("retry", which, limit):
                letters = model.find(which)[:limit]
                change = await self.stores.dead.retry(which, limit)
                assert (change.done, change.queues) == _changed(letters)
                model.retry(letters, now)
            case ("remove", which, limit):
                letters = model.find(which)[:limit]
                change = await self.stores.dead.remove(which, limit)
                assert (change.done, change.queues) == _changed(letters)
                model.remove(letters)
            case ("edit", pick):
                for row in _choose(model.find(DeadFilter()), [pick]):
                    item_id = row.item_id
                    assert await self.stores.dead.edit(item_id, b"edited")
                    model.edit(item_id, b"edited")
            case ("claim", queue, consumer, ahead, items_max):
                await self._claim((queue, consumer), ahead, items_max)
            case ("drop", queue, consumer):
                released = self.streams.drop((queue, consumer))
                assert await cold.drop_stream(queue, consumer) == released
            case ("reopen",):
                await self.stores.reopen()
            case ("crash",):
                await self.stores.crash()
            case _:
                raise AssertionError(step)

    async def _claim(self, who: Consumer, ahead: int, items_max: int) -> None:
        after = self.streams.stream(who).acknowledged + ahead
        expected = self.streams.claim(who, after, items_max, self._now())
        try:
            got = await self.stores.cold.claim(*who, after, items_max)
        except WrongClaim:
            assert expected is None
        else:
            assert got == expected

    async def _compare_streams(self) -> None:
        cold = self.stores.cold
        assert await cold.streams() == sorted(self.streams.readers)
        assert await cold.receipt(WRITE) == self.streams.receipt(WRITE)
        for who, reader in self.streams.readers.items():
            assert await cold.stream(*who) == self.streams.stream(who)
            if reader.rows is not None:
                seen = await cold.fetch(*who, reader.acknowledged + 1, 0, 100, 1 << 20)
                found = [row[:4] for row in seen.rows]
                assert found == [seen_of(n, row)[:4] for n, row in enumerate(reader.rows)]
        for queue in QUEUES:
            held = self.model.of("queued", queue) + self.model.of("claimed", queue)
            look = await cold.peek(queue, "", 1000, 1 << 20)
            assert sorted(row[:4] for row in look.rows) == sorted(seen_of(0, r)[:4] for r in held)

    async def _compare(self) -> None:
        cold, dead, model, now = self.stores.cold, self.stores.dead, self.model, self._now()
        assert await cold.totals() == model.totals()
        assert sorted(await cold.flows()) == model.flows()
        await check_books(self.stores)
        stored = [(left.row, left.items) for left in await cold.unconfirmed()]
        assert stored == model.unconfirmed()
        for queue in QUEUES:
            for flows in (frozenset[str](), frozenset({"g"})):
                assert await cold.outlook(queue, flows) == model.outlook(queue, now, flows)
        for which in (DeadFilter(), DeadFilter(queue="q", error="time")):
            page = await dead.find(which, 1000)
            expected = model.find(which)
            assert [(letter.row, letter.id) for letter in page.letters] == [
                (row.new.row, row.item_id) for row in expected
            ]
            assert await dead.count(which, 1000) == len(expected)
        assert len(await self.stores.bodies()) == model.bodies()
        await self._compare_streams()

    def _now(self) -> Now:
        return Now(self.stores.now_ms(), self.stores.steady_ms())

    def _make(self, kinds: Sequence[Kind]) -> list[NewRow]:
        rows = []
        for kind in kinds:
            whole = new_row(
                kind.items * kind.parts,
                kind.queue,
                flow=kind.flow,
                priority=kind.priority,
                headers={"forebay-write": WRITE.hex()} if kind.is_of_write else {},
            )
            for part in range(kind.parts):
                first = part * kind.items
                last = first + (1 if kind.is_dead else kind.items)
                now = self.stores.now_ms()
                error = ItemError(1, now, ERRORS[kind.items % 2])
                rows.append(
                    NewRow(
                        row=number(),
                        head=whole.head,
                        data=whole.data,
                        bits=item_bits(first, last),
                        due_ms=now + kind.due_in_ms if kind.due_in_ms else 0,
                        errors=(error,) if kind.is_dead else (),
                        is_dead=kind.is_dead,
                    )
                )
        self.made += rows
        return rows

    def _outcomes(
        self, choices: Sequence[tuple[int, int, list[str]]], now: int
    ) -> list[RowOutcome]:
        outcomes = []
        for pick, lock_off_by, fates in choices:
            for row, lock in _choose(list(self.leased.values()), [pick]):
                bits = {"done": 0, "stay": 0, "again": 0, "dead": 0}
                for index in indexes(row.bits):
                    bits[fates[index % 5]] |= 1 << index
                moved = []
                error = (*row.errors, ItemError(row.attempt + 1, now, ERRORS[now % 2]))
                if bits["again"]:
                    moved.append(self._moved(row, bits["again"], now + 500, error, False))
                for index in indexes(bits["dead"]):
                    moved.append(self._moved(row, 1 << index, 0, error, True))
                lock = LOCKS[(LOCKS.index(lock) + lock_off_by) % len(LOCKS)]
                both = bits["again"] | bits["dead"]
                outcomes.append(RowOutcome(row.row, lock, bits["done"], tuple(moved), both))
        return outcomes

    def _moved(
        self, row: ColdRow, bits: int, due_ms: int, errors: tuple[ItemError, ...], is_dead: bool
    ) -> NewRow:
        return NewRow(
            number(), row.head, row.data, bits, row.attempt + 1, due_ms, errors, is_dead
        )  # fmt: skip


def _choose(things: Sequence[Any], picks: Sequence[int]) -> list[Any]:
    """Counted from the newest, which are the likeliest to matter."""
    return [things[-1 - pick % len(things)] for pick in picks] if things else []


def _seen(row: ColdRow) -> tuple[Any, ...]:
    return (row.row, row.bits, row.attempt, row.due_ms, row.errors, len(row.data))


def _expected(row: Row) -> tuple[Any, ...]:
    return (row.new.row, row.bits, row.attempt, row.due_ms, row.new.errors, len(row.new.data))


def _changed(rows: Sequence[Row]) -> tuple[int, frozenset[str]]:
    return len(rows), frozenset(row.new.head.queue for row in rows)
