"""Writes: what may be staged, sealed, published and aborted, and what of it is read back."""

from typing import Any

import pytest

from actors.ports.journal import Record
from actors.spooler.writes import Decision, Phase, Writes
from forebay.errors import Refused
from tests.actors.spooler.staging_desk import W1, W2, A, B, code_of, positions

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


def test_version_that_was_published_to_another_queue_is_an_error_not_a_duplicate() -> None:
    writes = with_stages(A)
    published(writes, A, version=7)
    writes.add(W2, B, ("elsewhere", 5), 900, 100, 2, 1)
    make_so(writes, writes.decide_seal(W2, B, 1, 2, 1))

    refused = writes.decide_publish(W2, [B], "app", 7, 6)

    assert code_of(refused) == "BAD_REQUEST"
    assert isinstance(refused, Refused)
    assert "published to q" in refused.text
    assert writes.phase(W2, B) is Phase.OPEN


def test_stage_that_is_dropped_goes_alone_and_takes_nothing_more() -> None:
    writes = with_stages(A, B)
    decision = writes.decide_drop(W1, A, 3)
    assert isinstance(decision, Decision)
    assert decision.result["items"] == 6
    assert decision.record is not None
    gone = writes.apply(decision.record)

    assert [stage.runs for stage in gone.dropped] == [2]
    assert code_of(writes.refuse(W1, A)) == "STAGE_OVER"
    assert writes.decide_drop(W1, A, 4) == Decision(decision.result | {"items": 0})
    assert code_of(writes.decide_publish(W1, [A], None, None, 5)) == "NOT_FOUND"
    again = Writes()
    assert again.restore(writes.records()) == 0
    assert (again.phase(W1, A), again.phase(W1, B)) == (Phase.ABORTED, Phase.OPEN)
    assert published(writes, B)["items"] == 6


def test_published_write_loses_no_stage() -> None:
    writes = with_stages(A)
    published(writes, A)
    decision = writes.decide_drop(W1, A, 9)
    assert decision == Decision({"write": W1.hex(), "stage": A.hex(), "items": 0})


def test_of_too_many_applications_the_quietest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.spooler.writes.APPS_MAX", 2)
    writes = Writes()
    for write, app, version in ((b"1" * 16, "a", 1), (b"2" * 16, "b", 1), (b"3" * 16, "a", 2)):
        make_so(writes, writes.decide_publish(write, [], app, version, 1))
    make_so(writes, writes.decide_publish(b"4" * 16, [], "c", 1, 1))

    known = {record["app"] for record in writes.records() if record["is"] == "version"}

    assert known == {"a", "c"}


def test_writes_are_described_for_people() -> None:
    writes = with_stages(A, B)
    (described,) = writes.describe(None, 10, also_over=False)["writes"]
    assert (described["phase"], described["stages"], described["sealed"]) == ("open", 2, 2)
    assert (described["items"], described["queues"]) == (12, ["q"])
    published(writes, A)
    make_so(writes, writes.decide_abort(W2, 99))
    assert writes.describe(None, 10, also_over=False) == {"writes": [], "more": 0}
    found = writes.describe(None, 1, also_over=True)
    assert ([entry["phase"] for entry in found["writes"]], found["more"]) == (["aborted"], 1)
    found = writes.describe(W1, 1, also_over=True)
    assert ([entry["phase"] for entry in found["writes"]], found["more"]) == (["published"], 0)
