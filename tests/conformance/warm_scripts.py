"""Scripts of operations, played to a warm queue and to its model; they must agree.

After every step the answers and all fills are compared, and the limits hold. In the end whatever
is held can be delivered, and nothing remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st

from actors.model.slices import Slice
from actors.ports.tiers import Ending, Fill, Limits
from tests.conformance.warm_model import QUEUES, Held, Model
from tests.conformance.warm_rig import Rig, in_row, make_run, views, whole

FLOWS: Final = ("", "f", "g")


@dataclass(frozen=True)
class NewRun:
    items: int
    item_size: int
    flow: str
    priority: int
    delay_ms: int
    is_cold: bool


@dataclass(frozen=True)
class DoEnter:
    queue: str
    runs: tuple[NewRun, ...]
    limits: Limits


@dataclass(frozen=True)
class DoLease:
    queue: str
    items_max: int
    bytes_max: int
    lease_ms: int
    without: frozenset[str]


@dataclass(frozen=True)
class DoEnd:
    queue: str
    leases: tuple[int, ...]
    keep: int
    """A pattern of items that are put back, in one slice or, with those of `later`, in two."""
    later: int
    delay_ms: int


@dataclass(frozen=True)
class DoExtend:
    queue: str
    leases: tuple[int, ...]
    lease_ms: int


@dataclass(frozen=True)
class DoWithdraw:
    queue: str
    flow: str | None
    positions: tuple[int, int] | None


@dataclass(frozen=True)
class DoExpire:
    pass


@dataclass(frozen=True)
class DoAdvance:
    ms: int


@dataclass(frozen=True)
class DoStep:
    """The wall clock is set; only forward, since whether what was due stays due is left open."""

    ms: int


Step = DoEnter | DoLease | DoEnd | DoExtend | DoWithdraw | DoExpire | DoAdvance | DoStep

_queues = st.sampled_from(QUEUES)
_flows = st.sampled_from(FLOWS)
_millis = st.sampled_from([0, 1, 500, 1000, 1500])
_leases = st.sampled_from([1, 1000, 30_000])
_picks = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
_sizes = st.sampled_from([10**6, 3000, 1000, 200, 1])
_patterns = st.sampled_from([0, 0xFFF, 0x0F0, 0x555]) | st.integers(0, 0xFFF)
_runs = st.builds(
    NewRun,
    items=st.integers(1, 12),
    item_size=st.sampled_from([0, 1, 7, 300]),
    flow=_flows,
    priority=st.integers(0, 2),
    delay_ms=st.just(0) | _millis,
    is_cold=st.booleans(),
)
_enters = st.builds(
    DoEnter,
    _queues,
    st.lists(_runs, max_size=4).map(tuple),
    st.builds(Limits, st.sampled_from([1000, 15, 5, 1, 0]), _sizes),
)
_lease_steps = st.builds(
    DoLease,
    _queues,
    st.integers(1, 20),
    _sizes,
    _leases,
    st.just(frozenset[str]()) | st.frozensets(_flows, max_size=2),
)
_ends = st.builds(DoEnd, _queues, _picks, _patterns, _patterns, _millis)
_extends = st.builds(DoExtend, _queues, _picks, _leases)
_withdraws = st.builds(
    DoWithdraw,
    _queues,
    st.none() | _flows,
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 30)),
)
_kinds: list[tuple[int, st.SearchStrategy[Step]]] = [
    (6, _enters),
    (8, _lease_steps),
    (6, _ends),
    (1, _extends),
    (1, _withdraws),
    (2, st.builds(DoExpire)),
    (3, st.builds(DoAdvance, _millis)),
    (1, st.builds(DoStep, st.sampled_from([500, 3_600_000]))),
]
_steps = st.sampled_from([kind for weight, kind in _kinds for _ in range(weight)]).flatmap(
    lambda kind: kind
)
# Left alone, Hypothesis prefers scripts that end before anything has happened.
scripts = st.integers(0, 60).flatmap(lambda steps: st.lists(_steps, min_size=steps, max_size=60))


class Player:
    """Plays a script to both, and compares."""

    def __init__(self, rig: Rig, bytes_max: int | None = None) -> None:
        self._rig = rig
        self._warm = rig.warm
        self._model = Model(bytes_max)
        self._tokens: dict[str, list[int]] = {queue: [] for queue in QUEUES}
        """All that were ever given, so that stale ones are tried as well."""
        self._outside: dict[str, list[Slice]] = {queue: [] for queue in QUEUES}
        """What did not fit or was withdrawn; it enters with what comes next."""
        self._runs = 0

    async def play(self, script: Sequence[Step]) -> None:
        for step in script:
            await self._step(step)
            await self._compare_fills()
        await self._drain()

    async def _step(self, step: Step) -> None:
        match step:
            case DoEnter():
                await self._enter(step)
            case DoLease():
                await self._lease(step)
            case DoEnd():
                await self._end(step)
            case DoExtend():
                await self._extend(step)
            case DoWithdraw(queue, flow, bounds):
                positions = None if bounds is None else range(*bounds)
                gone = await self._warm.withdraw(queue, flow, positions)
                assert views(gone) == views(self._model.withdraw(queue, flow, positions))
                self._outside[queue] += gone
            case DoExpire():
                assert await self._warm.expire() == self._model.expire(self._rig.steady_ms())
            case DoAdvance(ms):
                await self._rig.advance(ms)
            case DoStep(ms):
                self._rig.step(ms)

    async def _enter(self, step: DoEnter) -> None:
        queue, limits, now_ms = step.queue, step.limits, self._rig.now_ms()
        slices = self._outside[queue] + [self._new_slice(run, now_ms) for run in step.runs]
        before = self._model.fill(queue, now_ms)
        entered = await self._warm.enter(queue, slices, limits)
        expected = self._model.enter(queue, slices, limits, now_ms)
        assert views(entered.rest) == views(expected.rest)
        assert entered.fill == expected.fill
        assert entered.fill.items <= max(limits.items, before.items)
        assert entered.fill.items == 1 or entered.fill.bytes <= max(limits.bytes, before.bytes)
        self._outside[queue] = entered.rest

    def _new_slice(self, new: NewRun, now_ms: int) -> Slice:
        self._runs += 1
        owner = in_row(self._runs) if new.is_cold else self._rig.owner(self._runs)
        run = make_run(
            self._runs,
            new.items,
            item_size=new.item_size,
            flow=new.flow,
            priority=new.priority,
            enqueued_ms=now_ms,
            owner=owner,
        )
        return whole(run, now_ms + new.delay_ms if new.delay_ms else 0)

    async def _lease(self, step: DoLease) -> None:
        now_ms = self._rig.now_ms()
        leased = await self._warm.lease(
            step.queue, step.items_max, step.bytes_max, step.lease_ms / 1000, step.without
        )
        expected = self._model.lease(
            step.queue, step.items_max, step.bytes_max, step.without, now_ms
        )
        assert views(leased) == views(held.slice for held in expected)
        for one, held in zip(leased, expected, strict=True):
            assert one.until_ms == now_ms + step.lease_ms
            assert all(one.token not in tokens for tokens in self._tokens.values())
            held.token, held.until_ms = one.token, self._rig.steady_ms() + step.lease_ms
            self._tokens[step.queue].append(one.token)

    def _pick(self, queue: str, numbers: Sequence[int]) -> list[int]:
        """Tokens, each once, the newest first."""
        known = self._tokens[queue]
        return list(dict.fromkeys(known[-1 - number] for number in numbers if number < len(known)))

    def _may_be(self, held: Held | None, is_known: bool) -> bool:
        """Whether a lease that has run out counts until it is put back is left open."""
        has_run_out = held is not None and held.until_ms <= self._rig.steady_ms()
        return has_run_out or is_known == (held is not None)

    async def _end(self, step: DoEnd) -> None:
        endings = []
        for token in self._pick(step.queue, step.leases):
            held = self._model.find(step.queue, token)
            again: list[Slice] = []
            if held is not None:
                now, later = step.keep & ~step.later, step.keep & step.later
                due_ms = self._rig.now_ms() + step.delay_ms
                failed = replace(held.slice, attempt=held.slice.attempt + 1, due_ms=0)
                again = [
                    replace(failed, bits=held.slice.bits & now),
                    replace(failed, bits=held.slice.bits & later, due_ms=due_ms),
                ]
            endings.append(Ending(token, tuple(slice_ for slice_ in again if slice_.bits)))
        for ending, is_ended in zip(
            endings, await self._warm.end(step.queue, endings), strict=True
        ):
            assert self._may_be(self._model.find(step.queue, ending.token), is_ended)
            if is_ended:
                self._model.end(step.queue, ending.token, ending.again)

    async def _extend(self, step: DoExtend) -> None:
        tokens = self._pick(step.queue, step.leases)
        until_ms = self._rig.steady_ms() + step.lease_ms
        extended = await self._warm.extend(step.queue, tokens, step.lease_ms / 1000)
        for token, is_extended in zip(tokens, extended, strict=True):
            held = self._model.find(step.queue, token)
            assert self._may_be(held, is_extended)
            if held is not None and is_extended:
                held.until_ms = until_ms

    async def _compare_fills(self) -> None:
        now_ms = self._rig.now_ms()
        expected = {queue: self._model.fill(queue, now_ms) for queue in QUEUES}
        assert await self._warm.fills() == {
            queue: fill for queue, fill in expected.items() if fill.items
        }
        for queue, fill in expected.items():
            assert await self._warm.fill(queue) == fill

    async def _drain(self) -> None:
        """Whatever happened, all that is held can be delivered, and nothing remains."""
        await self._rig.advance(10_000)
        await self._step(DoExpire())
        for queue in QUEUES:
            await self._step(DoLease(queue, 10**9, 10**12, 1000, frozenset()))
            tokens = [held.token for held in self._model.queues[queue] if held.token is not None]
            endings = [Ending(token) for token in tokens]
            assert await self._warm.end(queue, endings) == [True] * len(endings)
            assert await self._warm.fill(queue) == Fill()
