"""Writes: what may be staged, sealed, published and aborted, and that a restart changes nothing."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.accounts import NO_STAGE
from actors.ports import Record
from actors.writes import Decision, Phase, Stage, Writes
from forebay.errors import Refused

W1, W2 = bytes([1]) * 16, bytes([2]) * 16
A, B = b"A" * 16, b"B" * 16
LANE = ("q", 5)


def make_so(writes: Writes, decision: Decision | Refused) -> dict[str, Any]:
    assert isinstance(decision, Decision), decision
    if decision.record is not None:
        writes.apply(decision.record)
    return decision.result


def with_stages(*stages: bytes, seal: bool = True) -> Writes:
    """A write of which each of these stages has two runs of 3 items."""
    writes = Writes()
    for order, stage in enumerate(stages):
        writes.add(W1, stage, LANE, 200 * order, 100, 3, 1)
        writes.add(W1, stage, LANE, 200 * order + 100, 100, 3, 1)
        if seal:
            make_so(writes, writes.decide_seal(W1, stage, 2, 6, 1))
    return writes


def published(writes: Writes, *stages: bytes, version: int | None = None) -> dict[str, Any]:
    app = None if version is None else "app"
    return make_so(writes, writes.decide_publish(W1, stages, app, version, 5))


def code_of(decision: Decision | Refused | None) -> str:
    return decision.code if isinstance(decision, Refused) else "ok"


# A table of decisions: what was done before, and what is answered then.


@pytest.mark.parametrize(
    "runs, items, code",
    [(2, 6, "ok"), (1, 3, "BAD_REQUEST"), (3, 6, "BAD_REQUEST"), (2, 7, "BAD_REQUEST")],
)
def test_stage_is_sealed_if_all_of_it_is_there(runs: int, items: int, code: str) -> None:
    writes = with_stages(A, seal=False)
    assert code_of(writes.decide_seal(W1, A, runs, items, 2)) == code


def test_sealing_again_changes_nothing_and_is_answered_alike() -> None:
    writes = with_stages(A, seal=False)
    first = writes.decide_seal(W1, A, 2, 6, 2)
    assert isinstance(first, Decision)
    assert first.record is not None
    result = make_so(writes, first)
    assert writes.decide_seal(W1, A, 2, 6, 3) == Decision(result)
    published(writes, A)
    assert writes.decide_seal(W1, A, 2, 6, 4) == Decision(result)


@pytest.mark.parametrize("end", ["nothing staged", "aborted", "not named"])
def test_stage_that_is_not_there_cannot_be_sealed(end: str) -> None:
    writes = with_stages(A, B)
    if end == "aborted":
        make_so(writes, writes.decide_abort(W1, 2))
    elif end == "not named":
        published(writes, B)
    write = W2 if end == "nothing staged" else W1
    assert code_of(writes.decide_seal(write, A, 2, 6, 3)) == "NOT_FOUND"


def test_nothing_is_staged_where_it_is_over() -> None:
    writes = with_stages(A)
    assert code_of(writes.refuse(W1, A)) == "STAGE_OVER"
    assert writes.refuse(W1, B) is None
    assert writes.refuse(W2, A) is None
    published(writes, A)
    assert code_of(writes.refuse(W1, B)) == "STAGE_OVER"
    make_so(writes, writes.decide_abort(W2, 2))
    assert code_of(writes.refuse(W2, A)) == "STAGE_OVER"


def test_stage_whose_id_stands_for_a_whole_write_in_the_books_is_refused() -> None:
    assert code_of(Writes().refuse(W1, NO_STAGE)) == "BAD_RUN"


def test_publishing_shows_what_it_names_and_drops_the_rest() -> None:
    writes = with_stages(A, B)
    decision = writes.decide_publish(W1, [A, A], None, None, 5)
    assert isinstance(decision, Decision)
    assert decision.record is not None
    assert decision.result == {
        "outcome": "published",
        "write": W1.hex(),
        "items": 6,
        "published_ms": 5,
    }
    gone = writes.apply(decision.record)
    assert [positions(stage) for stage in gone.visible] == [[0, 100]]
    assert [positions(stage) for stage in gone.dropped] == [[200, 300]]
    assert writes.phase(W1, A) is Phase.PUBLISHED
    assert writes.phase(W1, B) is Phase.ABORTED


def test_publishing_again_is_answered_as_the_first_time_whatever_it_names() -> None:
    writes = with_stages(A, B)
    first = published(writes, A, version=3)
    assert writes.decide_publish(W1, [B], "app", 9, 99) == Decision(first)


@pytest.mark.parametrize(
    "stages, seal, code",
    [([B], True, "NOT_FOUND"), ([A, B], True, "NOT_FOUND"), ([A], False, "BAD_REQUEST")],
)
def test_missing_or_unsealed_stage_fails_the_publication_and_changes_nothing(
    stages: list[bytes], seal: bool, code: str
) -> None:
    writes = with_stages(A, seal=seal)
    before = writes.records()
    assert code_of(writes.decide_publish(W1, stages, None, None, 5)) == code
    assert writes.records() == before
    assert writes.phase(W1, A) is Phase.OPEN


def test_stage_that_lost_a_run_after_it_was_sealed_is_not_published() -> None:
    writes = Writes()
    writes.restore(with_stages(A).records())
    writes.add(W1, A, LANE, 0, 100, 3, 1)
    refused = writes.decide_publish(W1, [A], None, None, 5)
    assert code_of(refused) == "BAD_REQUEST"
    assert "1 of 2 sealed runs" in str(refused)


def test_write_without_stages_is_published_empty() -> None:
    assert published(Writes())["items"] == 0


@pytest.mark.parametrize(
    "version, outcome, holder",
    [(8, "published", W2), (7, "duplicate", W1), (6, "duplicate", None)],
)
def test_version_that_is_not_new_is_a_duplicate_and_its_own_write_is_dropped(
    version: int, outcome: str, holder: bytes | None
) -> None:
    writes = with_stages(A)
    published(writes, A, version=7)
    writes.add(W2, B, LANE, 900, 100, 2, 1)
    make_so(writes, writes.decide_seal(W2, B, 1, 2, 1))
    for _ in range(2):
        result = make_so(writes, writes.decide_publish(W2, [B], "app", version, 6))
        assert result["outcome"] == outcome
        assert result["write"] == (None if holder is None else holder.hex())
    expected = Phase.PUBLISHED if outcome == "published" else Phase.ABORTED
    assert writes.phase(W2, B) is expected


def test_other_applications_have_versions_of_their_own() -> None:
    writes = with_stages(A)
    published(writes, A, version=7)
    result = make_so(writes, writes.decide_publish(W2, [], "other", 1, 6))
    assert result["outcome"] == "published"


def test_abort_drops_everything_and_is_answered_alike_again() -> None:
    writes = with_stages(A, B)
    assert make_so(writes, writes.decide_abort(W1, 2)) == {"outcome": "aborted", "items": 12}
    assert make_so(writes, writes.decide_abort(W1, 3)) == {"outcome": "aborted", "items": 12}
    assert code_of(writes.decide_publish(W1, [A], None, None, 4)) == "STAGE_OVER"


def test_abort_after_publishing_changes_nothing() -> None:
    writes = with_stages(A)
    published(writes, A)
    assert writes.decide_abort(W1, 9) == Decision({"outcome": "published", "items": 6})


def test_write_that_was_aborted_before_its_first_run_takes_none() -> None:
    writes = Writes()
    make_so(writes, writes.decide_abort(W1, 1))
    assert code_of(writes.refuse(W1, A)) == "STAGE_OVER"


def test_open_writes_expire_by_when_they_were_last_heard_of() -> None:
    writes = with_stages(A)
    writes.add(W2, A, LANE, 900, 100, 1, 50)
    assert writes.expired(before_ms=50) == [W1]
    assert writes.expired(before_ms=51) == [W1, W2]
    published(writes, A)
    assert writes.expired(before_ms=51) == [W2]


def test_ended_writes_are_forgotten_once_nothing_on_disk_needs_them() -> None:
    writes = with_stages(A)
    published(writes, A, version=4)
    assert writes.forget(before_ms=5, needed=frozenset()) == []
    assert writes.forget(before_ms=6, needed=frozenset({W1})) == []
    assert writes.forget(before_ms=6, needed=frozenset()) == [W1]
    # The version is remembered for ever.
    again = writes.decide_publish(W2, [], "app", 4, 9)
    assert isinstance(again, Decision)
    assert (again.result["outcome"], again.result["write"]) == ("duplicate", None)


# What is read back.


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"is": "sealed"},
        {"is": "published", "write": W1.hex(), "at_ms": 9, "items": 4},
        {"is": "published", "write": W1.hex(), "at_ms": 9, "items": 4, "stages": [1], "queues": []},
        {"is": "aborted", "write": "no digits", "at_ms": 9, "items": 0},
        {"is": "aborted", "write": W1.hex(), "at_ms": None, "items": 0},
        {"is": "of another version", "write": W1.hex(), "at_ms": 9, "items": 4},
        {"is": "version", "app": "app"},
    ],
)
def test_record_that_makes_no_sense_is_counted_and_changes_nothing(nonsense: Record) -> None:
    writes = with_stages(A)
    before = writes.records()
    assert writes.restore([nonsense]) == 1
    assert writes.records() == before
    assert writes.phase(W1, A) is Phase.OPEN


def test_highest_version_counts_in_whatever_order_records_are_read() -> None:
    """Records of writes stand in the order in which the writes began, not in that of their end."""
    writes = with_stages(A)
    make_so(writes, writes.decide_publish(W2, [], "app", 1, 4))
    published(writes, A, version=2)
    records = [record for record in writes.records() if record["is"] == "published"]
    assert [record["version"] for record in records] == [2, 1]
    restored = Writes()
    restored.restore(records)
    late = restored.decide_publish(b"L" * 16, [], "app", 2, 9)
    assert isinstance(late, Decision)
    assert late.result["outcome"] == "duplicate"


def test_open_writes_are_kept_for_good_where_the_log_was_damaged() -> None:
    writes = with_stages(A)
    make_so(writes, writes.decide_publish(W2, [], None, None, 1))
    assert writes.keep_open() == 1
    restored = Writes()
    assert restored.restore(writes.records()) == 0
    for known in (writes, restored):
        assert known.expired(before_ms=2**60) == []
    make_so(writes, writes.decide_abort(W1, 9))
    assert not [record for record in writes.records() if record["is"] == "kept"]


# Many writes, with restarts, against a model that knows no records.

WRITES = [bytes([number]) * 16 for number in range(1, 4)]
STAGES = [bytes([number]) * 16 for number in range(65, 68)]
LANES = [("north", 0), ("north", 5), ("south", 5)]
APPS = st.sampled_from([None, "app", "other"])

any_write, any_stage = st.sampled_from(WRITES), st.sampled_from(STAGES)


@dataclass
class Ended:
    phase: Phase
    stages: frozenset[bytes]
    result: dict[str, Any]


def positions(stage: Stage) -> list[int]:
    places = [place for lane in stage.lanes.values() for place in lane.peek(len(lane), 2**62)]
    return sorted(place.position for place in places)


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
        known_only=st.booleans(),
        app=APPS,
        version=st.integers(0, 3),
    )
    def publish(
        self, write: bytes, stages: set[bytes], known_only: bool, app: str | None, version: int
    ) -> None:
        self.now += 1
        there = {stage for stage, items in self._stages(write).items() if items}
        if known_only:
            stages &= {stage for stage in there if (write, stage) in self.sealed}
        number = None if app is None else version
        decision = self.writes.decide_publish(write, sorted(stages), app, number, self.now)
        before = self.ended.get(write)
        if before is not None and before.phase is Phase.PUBLISHED:
            assert decision == Decision(before.result)
        elif app is not None and version <= self.versions.get(app, -1):
            assert isinstance(decision, Decision)
            assert decision.result["outcome"] == "duplicate"
            if before is None:
                self._end_aborted(write, decision)
        elif before is not None:
            assert code_of(decision) == "STAGE_OVER"
        elif not stages <= there:
            assert code_of(decision) == "NOT_FOUND" or stages & there
            assert code_of(decision) != "ok"
        elif any((write, stage) not in self.sealed for stage in stages):
            assert code_of(decision) == "BAD_REQUEST"
        else:
            visible, dropped = self._settle(decision)
            assert visible == self._positions(write, *stages)
            assert dropped == self._positions(write, *(there - stages))
            assert isinstance(decision, Decision)
            items = sum(self._stages(write)[stage] for stage in stages)
            assert decision.result["items"] == items
            self.ended[write] = Ended(Phase.PUBLISHED, frozenset(stages), decision.result)
            if app is not None:
                self.versions[app] = version

    @rule(write=any_write)
    def abort(self, write: bytes) -> None:
        self.now += 1
        decision = self.writes.decide_abort(write, self.now)
        before = self.ended.get(write)
        if before is None:
            self._end_aborted(write, decision)
        else:
            assert decision.record is None
            assert decision.result["outcome"] == before.phase.name.lower()
            assert decision.result["items"] == before.result["items"]

    def _end_aborted(self, write: bytes, decision: Decision | Refused) -> None:
        there = self._stages(write)
        assert self._settle(decision) == (set(), self._positions(write, *there))
        result = {"items": sum(there.values())}
        self.ended[write] = Ended(Phase.ABORTED, frozenset(), result)

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


TestManyWrites = ManyWrites.TestCase
TestManyWrites.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
