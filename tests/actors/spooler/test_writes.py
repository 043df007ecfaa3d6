"""Writes: what may be staged and sealed, how decisions are carried out, and what is read back."""

import json
from typing import Any

import pytest

from actors.ports.journal import Record
from actors.ports.writes import (
    LastVersion,
    OpenWrite,
    Published,
    SealedStage,
    Verdict,
    WriteView,
)
from actors.spooler.writes import Decision, Phase, Writes
from forebay.errors import Refused
from tests.actors.spooler.staging_desk import W1, W2, A, B, C, code_of, positions

LANE = ("q", 5)


def make_so(writes: Writes, decision: Decision | Refused) -> tuple[list[int], list[int]]:
    """Through its record; the positions that got visible, and those that went."""
    assert isinstance(decision, Decision), decision
    if decision.record is None:
        return [], []
    gone = writes.apply(json.loads(json.dumps(decision.record)))
    visible = sorted(at for stage in gone.visible for at in positions(stage))
    return visible, sorted(at for stage in gone.dropped for at in positions(stage))


def with_stages(*stages: bytes, seal: bool = True) -> Writes:
    """A write of which each of these stages has two runs of 3 items."""
    writes = Writes()
    for order, stage in enumerate(stages):
        writes.add(W1, stage, LANE, 200 * order, 100, 3, 1)
        writes.add(W1, stage, LANE, 200 * order + 100, 100, 3, 1)
        if seal:
            make_so(writes, writes.decide_seal(W1, stage, 2, 6, 1))
    return writes


def verdict(write: bytes, *stages: bytes, **changes: Any) -> Verdict:
    return Verdict(write, True, 5, stages, 6 * len(stages), ("q",), **changes)


def publish(
    writes: Writes, write: bytes, *stages: bytes, version: int | None = None, app: str = "app"
) -> tuple[list[int], list[int]]:
    txn = {} if version is None else {"app": app, "version": version}
    return make_so(writes, writes.decide_applied(verdict(write, *stages, **txn), 9))


def abort(writes: Writes, write: bytes, now_ms: int = 9) -> tuple[list[int], list[int]]:
    return make_so(writes, writes.decide_applied(Verdict(write, False, 0), now_ms))


def view(writes: Writes, write: bytes, *stages: bytes, app: str | None = None) -> WriteView:
    found = writes.view(write, stages, app)
    assert isinstance(found, WriteView)
    return found


# What changes, and what is answered then.


@pytest.mark.parametrize(
    "runs, items, code",
    [(2, 6, "ok"), (1, 3, "BAD_REQUEST"), (3, 6, "BAD_REQUEST"), (2, 7, "BAD_REQUEST")],
)
def test_stage_is_sealed_if_all_of_it_is_there(runs: int, items: int, code: str) -> None:
    writes = with_stages(A, seal=False)
    assert code_of(writes.decide_seal(W1, A, runs, items, 2)) == code


def test_sealing_again_changes_nothing_and_is_answered_alike() -> None:
    writes = with_stages(A, seal=False)
    sealed = SealedStage(A, 2, 6, ("q",))
    first = writes.decide_seal(W1, A, 2, 6, 2)
    assert isinstance(first, Decision)
    assert first.result == sealed
    make_so(writes, first)
    assert writes.decide_seal(W1, A, 2, 6, 3) == Decision(sealed)
    publish(writes, W1, A)
    assert writes.decide_seal(W1, A, 2, 6, 4) == Decision(None)


@pytest.mark.parametrize("end", ["nothing staged", "aborted", "not named"])
def test_stage_that_is_not_there_cannot_be_sealed(end: str) -> None:
    writes = with_stages(A, B)
    if end == "aborted":
        abort(writes, W1)
    elif end == "not named":
        publish(writes, W1, B)
    write = W2 if end == "nothing staged" else W1
    assert code_of(writes.decide_seal(write, A, 2, 6, 3)) == "NOT_FOUND"


def test_nothing_is_staged_where_it_is_over() -> None:
    writes = with_stages(A)
    assert code_of(writes.refuse(W1, A)) == "STAGE_OVER"
    assert writes.refuse(W1, B) is None
    assert writes.refuse(W2, A) is None
    publish(writes, W1, A)
    assert code_of(writes.refuse(W1, B)) == "STAGE_OVER"
    abort(writes, W2)
    assert code_of(writes.refuse(W2, A)) == "STAGE_OVER"


def test_published_stages_become_visible_and_the_rest_goes() -> None:
    writes = with_stages(A, B)
    writes.add(W1, C, LANE, 400, 100, 3, 1)
    decision = writes.decide_applied(verdict(W1, A), 9)
    assert decision.result == 0
    assert make_so(writes, decision) == ([0, 100], [200, 300, 400])
    assert writes.phase(W1, A) is Phase.PUBLISHED
    assert writes.phase(W1, B) is Phase.ABORTED
    assert code_of(writes.refuse(W1, C)) == "STAGE_OVER"
    # Told again, or told something else: nothing more happens.
    assert writes.decide_applied(verdict(W1, A), 99) == Decision(0)
    assert writes.decide_applied(Verdict(W1, False, 99), 99) == Decision(0)


def test_items_that_are_not_here_any_more_are_missing() -> None:
    writes = with_stages(A)
    decision = writes.decide_applied(verdict(W1, A, B), 9)
    assert decision.result == 6
    assert make_so(writes, decision) == ([0, 100], [])
    known = writes.published(W1)
    assert known is not None
    assert known.items == 12


def test_abort_drops_everything_and_is_remembered() -> None:
    writes = with_stages(A, B)
    assert abort(writes, W1) == ([], [0, 100, 200, 300])
    assert view(writes, W1).phase == "aborted"
    assert view(writes, W1).items == 12
    assert writes.decide_applied(Verdict(W1, False, 0), 10) == Decision(0)


def test_write_that_was_aborted_before_its_first_run_takes_none() -> None:
    writes = Writes()
    abort(writes, W1)
    assert code_of(writes.refuse(W1, A)) == "STAGE_OVER"


def test_stage_that_is_dropped_goes_alone_and_takes_nothing_more() -> None:
    writes = with_stages(A, B)
    decision = writes.decide_drop(W1, A, 3, also_sealed=True)
    assert decision.result == 6
    assert make_so(writes, decision) == ([], [0, 100])
    assert code_of(writes.refuse(W1, A)) == "STAGE_OVER"
    assert writes.decide_drop(W1, A, 4, also_sealed=True) == Decision(0)
    assert view(writes, W1, A).sealed == ()
    again = Writes()
    assert again.restore(writes.records()) == 0
    assert (again.phase(W1, A), again.phase(W1, B)) == (Phase.ABORTED, Phase.OPEN)
    assert publish(writes, W1, B) == ([200, 300], [])


def test_a_sealed_stage_is_not_dropped_before_the_store_has_decided() -> None:
    writes = with_stages(A)
    writes.add(W1, B, LANE, 200, 100, 3, 1)
    assert writes.decide_drop(W1, A, 2, also_sealed=False) == Decision(None)
    assert make_so(writes, writes.decide_drop(W1, B, 2, also_sealed=False)) == ([], [200])


def test_published_write_loses_no_stage() -> None:
    writes = with_stages(A)
    publish(writes, W1, A)
    assert writes.decide_drop(W1, A, 9, also_sealed=True) == Decision(0)


def test_ended_writes_are_forgotten_once_nothing_on_disk_needs_them() -> None:
    writes = with_stages(A)
    publish(writes, W1, A, version=4)
    assert writes.forget(before_ms=5, needed=frozenset()) == []
    assert writes.forget(before_ms=6, needed=frozenset({W1})) == []
    assert writes.forget(before_ms=6, needed=frozenset()) == [W1]
    # The version is remembered for ever.
    assert view(writes, W2, app="app").last == LastVersion(4, W1, None)


# What the store is told.


def test_a_view_has_the_sealed_stages_that_are_asked_for() -> None:
    writes = with_stages(A)
    writes.add(W1, B, LANE, 200, 100, 3, 1)
    found = view(writes, W1, A, B, C)
    assert found.sealed == (SealedStage(A, 2, 6, ("q",)),)
    assert (found.phase, found.items, found.published, found.last) == ("open", 9, None, None)
    assert writes.open_writes() == [OpenWrite(W1, 1, is_kept=False)]


def test_a_view_says_what_is_published_and_the_last_version() -> None:
    writes = with_stages(A)
    publish(writes, W1, A, version=7)
    done = Published("published", W1, 6, 5)
    assert view(writes, W1, app="app") == WriteView(
        "published", 6, done, (), LastVersion(7, W1, done)
    )
    assert view(writes, W2, app="other").last is None
    assert writes.open_writes() == []


def test_stage_that_lost_a_run_after_it_was_sealed_is_not_published() -> None:
    writes = Writes()
    writes.restore(with_stages(A).records())
    writes.add(W1, A, LANE, 0, 100, 3, 1)
    refused = writes.view(W1, [A], None)
    assert code_of(refused) == "BAD_REQUEST"
    assert "1 of 2 sealed runs" in str(refused)


def test_the_highest_version_counts_in_whatever_order_decisions_are_heard_of() -> None:
    writes = with_stages(A)
    publish(writes, W2, version=8)
    assert publish(writes, W1, A, version=7) == ([0, 100], [])
    last = view(writes, W1, app="app").last
    assert last is not None
    assert (last.version, last.write) == (8, W2)


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
    publish(writes, W2, version=1)
    publish(writes, W1, A, version=2)
    records = [record for record in writes.records() if record["is"] == "published"]
    assert [record["version"] for record in records] == [2, 1]
    restored = Writes()
    restored.restore(records)
    last = view(restored, b"L" * 16, app="app").last
    assert last is not None
    assert last.version == 2


def test_open_writes_are_kept_for_good_where_the_log_was_damaged() -> None:
    writes = with_stages(A)
    publish(writes, W2)
    assert writes.keep_open() == 1
    restored = Writes()
    assert restored.restore(writes.records()) == 0
    for known in (writes, restored):
        assert [entry.is_kept for entry in known.open_writes()] == [True]
    abort(writes, W1)
    assert not [record for record in writes.records() if record["is"] == "kept"]


def test_of_too_many_applications_the_quietest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.spooler.writes.APPS_MAX", 2)
    writes = Writes()
    for write, app, version in ((b"1" * 16, "a", 1), (b"2" * 16, "b", 1), (b"3" * 16, "a", 2)):
        publish(writes, write, app=app, version=version)
    publish(writes, b"4" * 16, app="c", version=1)

    known = {record["app"] for record in writes.records() if record["is"] == "version"}

    assert known == {"a", "c"}


def test_writes_are_described_for_people() -> None:
    writes = with_stages(A, B)
    (described,) = writes.describe(None, 10, also_over=False)["writes"]
    assert (described["phase"], described["stages"], described["sealed"]) == ("open", 2, 2)
    assert (described["items"], described["queues"]) == (12, ["q"])
    publish(writes, W1, A)
    abort(writes, W2, 99)
    assert writes.describe(None, 10, also_over=False) == {"writes": [], "more": 0}
    found = writes.describe(None, 1, also_over=True)
    assert ([entry["phase"] for entry in found["writes"]], found["more"]) == (["aborted"], 1)
    found = writes.describe(W1, 1, also_over=True)
    assert ([entry["phase"] for entry in found["writes"]], found["more"]) == (["published"], 0)
