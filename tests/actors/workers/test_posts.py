"""What a daemon tells another of its runs, there and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.model.outcomes import Conclusion
from actors.model.slices import Abroad, InJournal, ItemError, LentRun, Slice, item_bits
from actors.workers.posts import BadPost, conclusion_of, make_post, read_post
from forebay import encode_run
from forebay.run import read_head, read_run
from forebay.stage_frames import WRITE_HEADER

DATA = encode_run([b"x"] * 64, queue="q")
HEAD = read_head(DATA)
ABROAD = LentRun(HEAD, DATA, Abroad(b"d" * 16, 7, 4096))
AT_HOME = LentRun(HEAD, DATA, InJournal(99, 4096))

ERROR = ItemError(1, 1_700_000_000_000, 'it said "no" – 503')


def split(shares: list[int]) -> tuple[int, int, int, int, int]:
    """Disjoint bits for each share."""
    found = [0, 0, 0, 0, 0]
    for index, share in enumerate(shares):
        found[share] |= 1 << index
    return found[0], found[1], found[2], found[3], found[4]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=64))
def test_what_became_of_a_slice_arrives_as_it_was(shares: list[int]) -> None:
    delivered, stays, later, dead, untried = split(shares)
    slice_ = Slice(ABROAD, item_bits(0, len(shares)))

    def part(bits: int, attempt: int, due_ms: int) -> tuple[Slice, ...]:
        return (Slice(ABROAD, bits, attempt, due_ms, (ERROR,) * attempt),) if bits else ()

    staying = (*part(stays, 1, 500), *part(untried, 0, 0))
    conclusion = Conclusion(delivered, (*staying, *part(later, 1, 900_000)), part(dead, 3, 0))
    packed = make_post(slice_, conclusion, staying)
    if untried == slice_.bits:
        assert packed == b"", "nothing has happened that the owner must hear of"
        return
    post = read_post(packed)
    assert (post.run_id, post.position) == (HEAD.run_id, 4096)
    leased, concluded, stayed = conclusion_of(post, AT_HOME)
    assert leased.run is AT_HOME
    assert leased.bits == slice_.bits & ~untried
    assert concluded.delivered == delivered
    assert [s.bits for s in stayed] == [s.bits for s in part(stays, 1, 500)]
    seen = [(s.bits, s.attempt, s.due_ms, s.errors) for s in (*concluded.again, *concluded.dead)]
    sent = [*part(stays, 1, 500), *part(later, 1, 900_000), *part(dead, 3, 0)]
    assert seen == [(s.bits, s.attempt, s.due_ms, s.errors) for s in sent]


def test_members_that_a_later_version_adds_are_passed_over() -> None:
    dead = Slice(ABROAD, 2, 3, 0, (ERROR,))
    packed = json.loads(make_post(Slice(ABROAD, 3), Conclusion(1, (), (dead,)), ()))
    packed["dead"][0][3][0] += ["business", "host/q/1", 5, "later", {"more": 1}]
    packed["dead"][0] += ["later"]
    packed["later on"] = [1]
    [part] = read_post(json.dumps(packed).encode()).dead
    assert (part.bits, part.attempt) == (2, 3)
    told = ERROR._replace(failure_reason="business", locked_by="host/q/1", locked_ms=5)
    assert part.errors == (told,)


def test_what_only_the_mail_may_have_is_in_it() -> None:
    data = encode_run([b"a", b"b", b"c"], queue="q", headers={WRITE_HEADER: "ab" * 16})
    run = LentRun(read_head(data), data, Abroad(b"d" * 16, 7, 4096))
    dead, later = Slice(run, 1, 3), Slice(run, 2, 1, 900_000)
    post = read_post(make_post(Slice(run, 7), Conclusion(4, (later,), (dead,)), ()))
    assert post.write == b"\xab" * 16
    left = [read_run(moved) for moved in post.left]
    assert [(run.payloads(), run.head.attempt, run.head.due_ms) for run in left] == [
        ([b"b"], 1, 900_000),
        ([b"a"], 3, 0),
    ]
    quiet = read_post(make_post(Slice(run, 7), Conclusion(7), ()))
    assert (quiet.write, quiet.left) == (b"\xab" * 16, ())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b'{"v": 1}',
        b'{"v": 2}',
        make_post(Slice(ABROAD, 1), Conclusion(1), ()).replace(b"[0,1]", b"[0]"),
        make_post(Slice(ABROAD, 1), Conclusion(1), ()).replace(b'"run":"', b'"run":"zz'),
    ],
)
def test_what_no_daemon_writes_is_said_to_be_so(data: bytes) -> None:
    with pytest.raises(BadPost):
        read_post(data)


def test_items_with_an_error_each_are_left_in_one_run() -> None:
    run = LentRun(HEAD, DATA, Abroad(b"d" * 16, 7, 4096))
    dead = tuple(
        Slice(run, 1 << index, 3, 0, (ERROR._replace(text=f"no {index}"),)) for index in range(64)
    )
    post = read_post(make_post(Slice(run, item_bits(0, 64)), Conclusion(0, (), dead), ()))
    assert len(post.dead) == 64
    [left] = post.left
    assert read_run(left).head.count == 64


def test_items_that_come_due_in_other_minutes_are_left_apart() -> None:
    run = LentRun(HEAD, DATA, Abroad(b"d" * 16, 7, 4096))
    later = tuple(Slice(run, 1 << index, 1, 900_000 + 40_000 * index) for index in range(3))
    post = read_post(make_post(Slice(run, 7), Conclusion(0, later, ()), ()))
    assert [(read_run(left).head.count, read_run(left).head.due_ms) for left in post.left] == [
        (2, 940_000),
        (1, 980_000),
    ]
