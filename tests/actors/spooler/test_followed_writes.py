"""Writes that are decided elsewhere: what a journal says of them, and how it follows."""

import json
from typing import Any

from actors.ports.writes import LastVersion, OpenWrite, Published, SealedStage, Verdict
from actors.spooler.writes import Decision, Phase, Writes
from forebay.errors import Refused
from tests.actors.spooler.staging_desk import code_of, positions

W, V = b"W" * 16, b"V" * 16
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def settle(writes: Writes, decision: Decision | Refused) -> tuple[list[int], list[int]]:
    """Makes it so, through its record; the positions that got visible, and those that went."""
    assert isinstance(decision, Decision)
    if decision.record is None:
        return [], []
    gone = writes.apply(json.loads(json.dumps(decision.record)))
    visible = [at for stage in gone.visible for at in positions(stage)]
    return visible, [at for stage in gone.dropped for at in positions(stage)]


def staged(writes: Writes, write: bytes, stage: bytes, at: int, *, is_sealed: bool = True) -> None:
    writes.add(write, stage, ("crm", 5), at, 100, 10, 1000)
    if is_sealed:
        settle(writes, writes.decide_seal(write, stage, 1, 10, 1000))


def verdict(*stages: bytes, **changes: Any) -> Verdict:
    fields = {"app": "feed", "version": 7, **changes}
    return Verdict(W, True, 2000, stages, 10 * len(stages), ("crm",), **fields)


def test_what_was_published_elsewhere_becomes_visible_and_the_rest_goes() -> None:
    writes = Writes()
    staged(writes, W, A, 100)
    staged(writes, W, B, 200)
    staged(writes, W, C, 300, is_sealed=False)
    decision = writes.decide_followed(verdict(A), 3000)
    assert decision.result == {"missing": 0}
    assert settle(writes, decision) == ([100], [200, 300])
    assert writes.phase(W, A) is Phase.PUBLISHED
    assert writes.phase(W, B) is Phase.ABORTED
    assert code_of(writes.refuse(W, C)) == "STAGE_OVER"
    # Told again: nothing more happens.
    assert writes.decide_followed(verdict(A), 3000) == Decision({"missing": 0})
    reborn = Writes()
    assert reborn.restore(writes.records()) == 0
    assert reborn.records() == writes.records()


def test_an_older_version_that_is_heard_of_later_is_published_all_the_same() -> None:
    writes = Writes()
    staged(writes, W, A, 100)
    staged(writes, V, B, 200)
    settle(writes, writes.decide_publish(V, [B], "feed", 8, 1000))
    assert settle(writes, writes.decide_followed(verdict(A, version=7), 3000)) == ([100], [])
    view = writes.view(W, (), "feed")
    assert not isinstance(view, Refused)
    assert view.last == LastVersion(8, V, Published("published", V, 10, 1000))


def test_items_that_are_not_here_any_more_are_said_to_be_missing() -> None:
    writes = Writes()
    staged(writes, W, A, 100)
    decision = writes.decide_followed(verdict(A, B), 3000)
    assert decision.result == {"missing": 10}
    assert settle(writes, decision) == ([100], [])
    known = writes.published(W)
    assert known is not None
    assert known.items == 20


def test_a_view_has_the_sealed_stages_that_are_asked_for() -> None:
    writes = Writes()
    staged(writes, W, A, 100)
    staged(writes, W, B, 200, is_sealed=False)
    view = writes.view(W, (A, B, C), None)
    assert not isinstance(view, Refused)
    assert view.sealed == (SealedStage(A, 1, 10, ("crm",)),)
    assert (view.phase, view.items, view.published, view.last) == ("open", 20, None, None)
    assert writes.open_writes() == [OpenWrite(W, 1000, is_kept=False)]
    # Of two runs that were sealed one is left on the disk.
    settle(writes, Decision({}, {"is": "sealed", "at_ms": 1, "write": W.hex(), "stage": A.hex(),
                                 "runs": 2, "items": 20}))  # fmt: skip
    assert code_of(writes.view(W, (A,), None)) == "BAD_REQUEST"


def test_a_sealed_stage_is_not_dropped_by_one_daemon_alone() -> None:
    writes = Writes()
    staged(writes, W, A, 100)
    staged(writes, W, B, 200, is_sealed=False)
    left = writes.decide_drop(W, A, 2000, also_sealed=False)
    assert left == Decision({"is_sealed": True})
    assert settle(writes, writes.decide_drop(W, B, 2000, also_sealed=False)) == ([], [200])
    assert settle(writes, writes.decide_drop(W, A, 2000)) == ([], [100])
