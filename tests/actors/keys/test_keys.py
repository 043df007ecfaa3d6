"""Who may have a key: the whole table of decisions, and runs that are decided on in one step."""

import pytest

from actors.keys.arbiter import Arbiter, Known, item_refs
from actors.model.keys import Holder, ItemRef, KeyRule, Phase, Policy, decide, is_stored, until
from forebay.errors import BadFrame, BadRun
from forebay.ids import format_item_id, pack_item_id
from forebay.keyed import (
    ONLY_IF_HEADER,
    KeyOutcome,
    count_outcomes,
    decided,
    only_if,
    read_decided,
    read_outcomes,
)
from forebay.run import Run, encode_run, read_run
from forebay.wire import FrameHead, Kind, read_frame_head

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome
NOW = 1000
MINE, THEIRS, OTHER = ItemRef(b"m" * 16, 3), ItemRef(b"t" * 16, 3), ItemRef(b"o" * 16, 0)


def held(phase: Phase, until_ms: int | None = None) -> Holder:
    return Holder(THEIRS, phase, until_ms)


HOLDERS: list[tuple[str, Holder | None]] = [
    ("nobody", None),
    ("waiting", held("waiting")),
    ("started", held("started")),
    ("dead", held("dead")),
    ("unreadable", held("unreadable")),
    ("in its window", held("done", NOW + 1)),
    ("past its window", held("done", NOW)),
]
#            nobody   waiting   started   dead      unreadable in window past
TABLE: dict[Policy, list[KeyOutcome]] = {
    "off": [CREATED] * 7,
    "ignore": [CREATED, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED, CREATED],
    "reject": [CREATED, CONFLICT, CONFLICT, CONFLICT, CONFLICT, CONFLICT, CREATED],
    "replace": [CREATED, UPDATED, CONFLICT, CONFLICT, CONFLICT, CONFLICT, CREATED],
}
SWAP = [CONFLICT, UPDATED, CONFLICT, CONFLICT, CONFLICT, CONFLICT, CONFLICT]


@pytest.mark.parametrize("policy", TABLE)
@pytest.mark.parametrize("column", range(len(HOLDERS)), ids=[name for name, _ in HOLDERS])
def test_what_becomes_of_an_item(policy: Policy, column: int) -> None:
    holder = HOLDERS[column][1]
    assert decide(holder, MINE, policy, NOW) is TABLE[policy][column]
    # Compare-and-swap does not ask for the policy.
    assert decide(holder, MINE, policy, NOW, only_if=THEIRS) is SWAP[column]
    assert decide(holder, MINE, policy, NOW, only_if=OTHER) is CONFLICT
    # What waits unchanged is not replaced, unless it is named.
    is_ignored = policy == "replace" and HOLDERS[column][0] == "waiting"
    expected = IGNORED if is_ignored else TABLE[policy][column]
    assert decide(holder, MINE, policy, NOW, is_same=True) is expected
    assert decide(holder, MINE, policy, NOW, only_if=THEIRS, is_same=True) is SWAP[column]
    # The same item once more is not a conflict with itself.
    assert decide(holder, THEIRS, policy, NOW) is (CREATED)


def test_a_swap_that_is_repeated_is_no_conflict_either() -> None:
    assert decide(held("started"), THEIRS, "reject", NOW, only_if=OTHER) is CREATED


def test_a_key_stays_taken_for_the_window_of_a_keyed_queue() -> None:
    assert until(KeyRule("reject", 50), NOW) == NOW + 50
    assert until(KeyRule("reject", 0), NOW) is None
    assert until(KeyRule("off", 50), NOW) is None
    assert [is_stored(outcome) for outcome in KeyOutcome] == [True, True, False, False]


def run_of(*keys: bytes, ids: list[bytes] | None = None) -> Run:
    return read_run(encode_run([b""] * len(keys), queue="q", keys=keys, item_ids=ids))


class TestArbiter:
    def test_a_run_of_free_keys_wins_as_a_whole(self) -> None:
        run = run_of(b"a", b"", b"b", b"")
        found = Arbiter[None](KeyRule("reject"), NOW, {}).decide(run, 0b1111)
        assert (found.won, list(found.outcomes)) == (0b1111, [CREATED] * 4)
        assert found.keys == {b"a": 0, b"b": 2}

    def test_only_the_chosen_items_are_decided_on(self) -> None:
        found = Arbiter[None](KeyRule("reject"), NOW, {}).decide(run_of(b"a", b"a", b"b"), 0b101)
        assert (found.won, found.keys) == (0b101, {b"a": 0, b"b": 2})
        assert list(found.outcomes) == [CREATED, CREATED]

    def test_a_later_run_takes_the_place_of_an_earlier_one(self) -> None:
        arbiter = Arbiter(KeyRule("replace"), NOW, {b"b": Known(held("waiting"), "there")})
        first = arbiter.decide(run_of(b"a", b"b"), 0b11)
        second = arbiter.decide(run_of(b"b", b"b", b"c"), 0b111)
        assert list(first.outcomes) == [CREATED, UPDATED]
        assert list(second.outcomes) == [UPDATED, UPDATED, CREATED]
        assert (first.won, first.replaced_here, first.keys) == (0b01, 0b10, {b"a": 0})
        assert [known.where for known in first.replaced] == ["there"]
        assert (second.won, second.replaced_here) == (0b110, 0b001)
        assert second.keys == {b"b": 1, b"c": 2}
        assert second.replaced == second.former == []

    def test_who_has_its_key_already_is_not_stored_again(self) -> None:
        run = run_of(b"a", b"b")
        mine = Known(Holder(ItemRef(run.head.run_id, 0), "done", NOW + 9), None)
        found = Arbiter(KeyRule("ignore"), NOW, {b"a": mine}).decide(run, 0b11)
        assert (list(found.outcomes), found.won, found.keys) == ([CREATED] * 2, 0b10, {b"b": 1})

    def test_a_key_that_is_free_again_has_a_former_holder_who_stays_deleted(self) -> None:
        past = Known(held("done", NOW), None)
        found = Arbiter(KeyRule("reject"), NOW, {b"a": past}).decide(run_of(b"a"), 1)
        assert (found.replaced, found.former) == ([], [past])

    def test_items_are_known_by_the_ids_that_their_run_lists(self) -> None:
        run = run_of(b"a", ids=[pack_item_id(*THEIRS)])
        assert item_refs(run) == [THEIRS]
        known = {b"a": Known(held("started"), None)}
        assert Arbiter(KeyRule("reject"), NOW, known).decide(run, 1).outcomes == bytes([CREATED])


class TestFrames:
    def test_an_ack_has_a_byte_for_each_item(self) -> None:
        data = decided(7, bytes([CREATED, CONFLICT]))
        assert read_frame_head(data) == FrameHead(Kind.ACK, 7, 3)
        outcomes = read_decided(data[12:], 2)
        assert read_outcomes(outcomes) == [CREATED, CONFLICT]
        assert list(count_outcomes(outcomes)) == [1, 0, 0, 1]

    @pytest.mark.parametrize(
        "body", [b"", b"\0", b"\2", b"\2\0", b"\2\0\0\0", b"\2\0\4", b"\1\0\0"]
    )
    def test_what_is_no_ack_of_two_items(self, body: bytes) -> None:
        with pytest.raises(BadFrame):
            read_decided(body, 2)

    def test_the_item_that_a_run_is_to_replace(self) -> None:
        def header(text: str, items: int = 1) -> Run:
            return read_run(encode_run([b""] * items, queue="q", headers={ONLY_IF_HEADER: text}))

        assert only_if(run_of(b"a").head) is None
        assert only_if(header(format_item_id(*THEIRS)).head) == THEIRS
        for run in (header("no id"), header(format_item_id(*THEIRS), items=2)):
            with pytest.raises(BadRun):
                only_if(run.head)
        elsewhere = encode_run([b""], queue="q", headers={"x": ONLY_IF_HEADER})
        assert only_if(read_run(elsewhere).head) is None
