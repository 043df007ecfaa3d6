"""Many writes, with restarts in between, against a model that knows no records."""

import json
from collections import defaultdict
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.ports.journal import Record
from actors.ports.writes import Verdict, WriteView
from actors.spooler.writes import Decision, Phase, Writes
from forebay.errors import Refused
from tests.actors.spooler.staging_desk import code_of, positions

WRITES = [bytes([number]) * 16 for number in range(1, 4)]
STAGES = [bytes([number]) * 16 for number in range(65, 68)]
LANES = [("north", 0), ("north", 5), ("south", 5)]
APPS = st.sampled_from([None, "app", "other"])

any_write, any_stage = st.sampled_from(WRITES), st.sampled_from(STAGES)


@dataclass
class Ended:
    phase: Phase
    stages: frozenset[bytes]
    items: int


class ManyWrites(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.writes = Writes()
        self.log: list[Record] = []
        """As it was appended to."""
        self.now = 0
        self.runs: dict[tuple[bytes, bytes], list[tuple[tuple[str, int], int, int]]] = defaultdict(
            list
        )
        """What is on disk: lane, position, items."""
        self.sealed: set[tuple[bytes, bytes]] = set()
        self.ended: dict[bytes, Ended] = {}
        self.versions: dict[str, int] = {}
        self.next_position = 0

    def _settle(self, decision: Decision | Refused) -> tuple[set[int], set[int]]:
        """Makes a decision so; the positions that got visible, and those that went."""
        assert isinstance(decision, Decision)
        if decision.record is None:
            return set(), set()
        record = json.loads(json.dumps(decision.record))
        self.log.append(record)
        gone = self.writes.apply(record)
        visible = {position for stage in gone.visible for position in positions(stage)}
        dropped = {position for stage in gone.dropped for position in positions(stage)}
        return visible, dropped

    def _stages(self, write: bytes) -> dict[bytes, int]:
        """The stages that a write has on disk, with their items."""
        return {
            stage: sum(items for _, _, items in runs)
            for (owner, stage), runs in self.runs.items()
            if owner == write
        }

    def _positions(self, write: bytes, *stages: bytes) -> set[int]:
        return {place for stage in stages for _, place, _ in self.runs[write, stage]}

    @rule(write=any_write, stage=any_stage, lane=st.sampled_from(LANES), items=st.integers(1, 9))
    def stage_a_run(self, write: bytes, stage: bytes, lane: tuple[str, int], items: int) -> None:
        self.now += 1
        over = write in self.ended or (write, stage) in self.sealed
        assert code_of(self.writes.refuse(write, stage)) == ("STAGE_OVER" if over else "ok")
        if not over:
            self.next_position += 100
            self.writes.add(write, stage, lane, self.next_position, 100, items, self.now)
            self.runs[write, stage].append((lane, self.next_position, items))

    @rule(write=any_write, stage=any_stage, wrong=st.sampled_from([0, 0, 1]))
    def seal(self, write: bytes, stage: bytes, wrong: int) -> None:
        self.now += 1
        runs = self.runs[write, stage]
        items = sum(count for _, _, count in runs)
        decision = self.writes.decide_seal(write, stage, len(runs) + wrong, items, self.now)
        ended = self.ended.get(write)
        if ended is not None and stage in ended.stages:
            assert code_of(decision) == "ok"
        elif ended is not None or not runs:
            assert code_of(decision) == "NOT_FOUND"
        elif wrong:
            assert code_of(decision) == "BAD_REQUEST"
        else:
            self._settle(decision)
            self.sealed.add((write, stage))

    @rule(
        write=any_write,
        stages=st.sets(any_stage),
        lost=st.integers(0, 2),
        app=APPS,
        version=st.integers(0, 3),
    )
    def publish(
        self, write: bytes, stages: set[bytes], lost: int, app: str | None, version: int
    ) -> None:
        """The store publishes what is sealed; `lost` items of it are not on this disk any more."""
        self.now += 1
        there = {stage for stage, items in self._stages(write).items() if items}
        stages &= {stage for stage in there if (write, stage) in self.sealed}
        items = sum(self._stages(write)[stage] for stage in stages)
        number = None if app is None else version
        verdict = Verdict(write, True, self.now, tuple(stages), items + lost, ("q",), app, number)
        before = self.ended.get(write)
        decision = self.writes.decide_applied(verdict, self.now)
        if before is not None and before.phase is Phase.PUBLISHED:
            assert decision == Decision(0)
            return
        if before is not None:
            # The store does not publish what it has dropped.
            return
        assert decision.result == lost
        visible, dropped = self._settle(decision)
        assert visible == self._positions(write, *stages)
        assert dropped == self._positions(write, *(there - stages))
        self.ended[write] = Ended(Phase.PUBLISHED, frozenset(stages), items + lost)
        if app is not None:
            self.versions[app] = max(version, self.versions.get(app, -1))

    @rule(write=any_write)
    def abort(self, write: bytes) -> None:
        self.now += 1
        decision = self.writes.decide_applied(Verdict(write, False, self.now), self.now)
        assert decision.result == 0
        if write in self.ended:
            assert decision.record is None
            return
        there = self._stages(write)
        assert self._settle(decision) == (set(), self._positions(write, *there))
        self.ended[write] = Ended(Phase.ABORTED, frozenset(), sum(there.values()))

    @rule(from_log=st.booleans())
    def restart(self, from_log: bool) -> None:
        """From the log as it was appended to, or as it was written anew before."""
        records = json.loads(json.dumps(self.log if from_log else self.writes.records()))
        self.log = records
        self.writes = Writes()
        assert self.writes.restore(records) == 0
        for (write, stage), runs in self.runs.items():
            if self.writes.phase(write, stage) is Phase.OPEN:
                for lane, position, items in runs:
                    self.writes.add(write, stage, lane, position, 100, items, self.now)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """A write that is over and whose runs are gone may be anything again."""
        over = sorted(self.ended)
        if over:
            write = data.draw(st.sampled_from(over))
            needed = frozenset(WRITES) - {write}
            assert self.writes.forget(self.now + 1, needed) == [write]
            self.log = self.writes.records()
            del self.ended[write]
            for stage in STAGES:
                self.runs.pop((write, stage), None)
                self.sealed.discard((write, stage))

    @invariant()
    def every_stage_is_what_it_was(self) -> None:
        for (write, stage), runs in self.runs.items():
            if not runs:
                continue
            ended = self.ended.get(write)
            phase = Phase.OPEN if ended is None else Phase.ABORTED
            if ended is not None and stage in ended.stages:
                phase = Phase.PUBLISHED
            assert self.writes.phase(write, stage) is phase
            over = ended is not None or (write, stage) in self.sealed
            assert code_of(self.writes.refuse(write, stage)) == ("STAGE_OVER" if over else "ok")

    @invariant()
    def the_store_is_told_what_is_so(self) -> None:
        for write in WRITES:
            view = self.writes.view(write, STAGES, "app")
            assert isinstance(view, WriteView)
            last = None if view.last is None else view.last.version
            assert last == self.versions.get("app")
            ended = self.ended.get(write)
            phase = Phase.OPEN if ended is None else ended.phase
            assert view.phase == phase.name.lower()
            there = self._stages(write)
            assert view.items == (sum(there.values()) if ended is None else ended.items)
            sealed = {s for s, items in there.items() if items and (write, s) in self.sealed}
            assert {stage.stage for stage in view.sealed} == (set() if ended else sealed)


TestManyWrites = ManyWrites.TestCase
TestManyWrites.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
