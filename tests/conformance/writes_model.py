"""Scripts of requests about writes, from two daemons, and a model of the answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from actors.ports.writes import Decisions, Published, PublishWish, SealedStage, WriteView
from forebay.errors import Refused
from tests.conformance.cold_writes import WriteStores, publish

WRITES = [bytes([number]) * 16 for number in range(1, 4)]
STAGES = [bytes([number]) * 16 for number in range(65, 69)]
NOTHING = WriteView("open", 0, None, (), None)
TTL_MS = 10_000

Step = tuple[Any, ...]
Txn = tuple[str, int]
sides, writes, stages = st.integers(0, 1), st.sampled_from(WRITES), st.sampled_from(STAGES)
versions = st.none() | st.tuples(st.sampled_from(["app", "other"]), st.integers(0, 3))
_steps = st.one_of(
    st.tuples(st.just("seal"), sides, writes, stages),
    st.tuples(st.just("seal"), sides, writes, stages),
    st.tuples(st.just("drop"), sides, writes, stages),
    st.tuples(st.just("publish"), sides, writes, st.frozensets(stages, max_size=2), versions),
    st.tuples(st.just("abort"), sides, writes),
    st.tuples(st.just("expire"), sides),
    st.tuples(st.just("wait"), st.integers(1, TTL_MS)),
    st.tuples(st.just("apply"), sides),
    st.tuples(st.just("forget"), sides),
)


scripts = st.lists(_steps, max_size=40)


@dataclass
class ModelWrite:
    phase: str = "open"
    at_ms: int = 0
    stages: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    """Whose each is, and what became of it."""
    applied: set[int] = field(default_factory=set)


class Model:
    def __init__(self) -> None:
        self.writes: dict[bytes, ModelWrite] = {}
        self.versions: dict[str, tuple[int, bytes]] = {}

    def seal(self, now: int, side: int, write: bytes, stage: bytes) -> object:
        known = self.writes.setdefault(write, ModelWrite(at_ms=now))
        if known.phase == "open" and stage not in known.stages:
            known.stages[stage] = (side, "sealed")
            known.at_ms = now
        _, state = known.stages.get(stage, (side, "dropped"))
        return "STAGE_OVER" if state == "dropped" else None

    def drop(self, now: int, side: int, write: bytes, stage: bytes) -> object:
        known = self.writes.setdefault(write, ModelWrite(at_ms=now))
        if known.phase == "open":
            owner, _ = known.stages.get(stage, (side, ""))
            if stage not in known.stages:
                known.at_ms = now
            known.stages[stage] = (owner, "dropped")
        return known.stages.get(stage, (0, ""))[1] != "published"

    def publish(
        self, now: int, _side: int, write: bytes, named: frozenset[bytes], txn: Txn | None
    ) -> object:
        known = self.writes.get(write, ModelWrite(at_ms=now))
        if known.phase == "published":
            return self._published(write)
        if txn is not None and txn[1] <= self.versions.get(txn[0], (-1, b""))[0]:
            self.writes[write] = known
            self._end(known, now)
            last, holder = self.versions[txn[0]]
            if txn[1] < last or holder not in self.writes:
                return Published("duplicate", None)
            return self._published(holder)._replace(outcome="duplicate")
        if known.phase == "aborted":
            return "STAGE_OVER"
        if any(known.stages.get(stage, (0, ""))[1] != "sealed" for stage in named):
            return "NOT_FOUND"
        self.writes[write] = known
        known.phase, known.at_ms = "published", now
        for stage, (owner, _) in known.stages.items():
            known.stages[stage] = (owner, "published" if stage in named else "dropped")
        if txn is not None:
            self.versions[txn[0]] = (txn[1], write)
        return self._published(write)

    def abort(self, now: int, _: int, write: bytes) -> object:
        known = self.writes.setdefault(write, ModelWrite(at_ms=now))
        self._end(known, now)
        return known.phase

    def expire(self, now: int, _: int) -> object:
        gone = [
            write
            for write, known in self.writes.items()
            if known.phase == "open" and known.at_ms <= now - TTL_MS
        ]
        for write in gone:
            self._end(self.writes[write], now)
        return sorted(gone)

    def apply(self, _: int, side: int) -> object:
        """What a daemon is told: once, if it has something of it."""
        told = {}
        for write, known in self.writes.items():
            own = {s for s, (owner, _) in known.stages.items() if owner == side}
            if known.phase != "open" and own and side not in known.applied:
                shown = sorted(s for s in own if known.stages[s][1] == "published")
                told[write] = (known.phase == "published", shown)
                known.applied.add(side)
        return told

    def forget(self, now: int, _: int) -> object:
        gone = [
            write
            for write, known in self.writes.items()
            if known.phase != "open"
            and known.at_ms <= now - TTL_MS
            and not any(
                state == "published" and owner not in known.applied
                for owner, state in known.stages.values()
            )
        ]
        for write in gone:
            del self.writes[write]
        return len(gone)

    def _end(self, known: ModelWrite, now: int) -> None:
        if known.phase == "open":
            known.phase, known.at_ms = "aborted", now
            known.stages = {s: (owner, "dropped") for s, (owner, _) in known.stages.items()}

    def _published(self, write: bytes) -> Published:
        known = self.writes[write]
        items = sum(state == "published" for _, state in known.stages.values())
        return Published("published", write, items, known.at_ms)


async def take(decisions: Decisions, step: Step) -> object:
    match step:
        case ("seal", _, write, stage):
            await decisions.seal(write, SealedStage(stage, 1, 1, ("q",)))
            return None
        case ("drop", _, write, stage):
            return await decisions.drop(write, stage)
        case ("publish", _, write, named, txn):
            app, version = txn or (None, None)
            wish = PublishWish(write, tuple(named), app, version, NOTHING)
            return await publish(decisions, wish)
        case ("abort", _, write):
            return (await decisions.abort(write, 0)).outcome
        case ("expire", _):
            return sorted(await decisions.expire([], TTL_MS))
        case ("apply", _):
            told = await decisions.verdicts([])
            await decisions.applied([verdict.write for verdict in told])
            return {v.write: (v.is_published, sorted(v.stages)) for v in told}
        case _:
            return await decisions.forget(TTL_MS)


async def play(stores: WriteStores, script: Sequence[Step]) -> None:
    model = Model()
    for step in script:
        if step[0] == "wait":
            stores.advance(step[1])
            continue
        expected = getattr(model, step[0])(stores.now_ms(), *step[1:])
        decisions = (stores.this, stores.other)[step[1]]
        try:
            answer = await take(decisions, step)
        except Refused as refused:
            answer = refused.code
        assert answer == expected, step
