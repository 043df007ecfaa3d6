"""Staging, sealing, publishing and claiming: what is sent, what is sent again, and when the client
gives up. On a clock and a link of the test's own."""

from collections.abc import Callable
from typing import Any

import pytest

from forebay import wire
from forebay.errors import BadFrame, Code, ForebayError, Refused, Unreachable
from forebay.fetch_frames import FetchedRow, pack_fetched
from forebay.run import encode_run
from forebay.stage_frames import unpack_stage
from forebay.wire import Kind, Outcome
from forebay.writes import (
    WRITE_HEADER,
    Aborted,
    Published,
    Sealed,
    Stage,
    new_write_id,
    write_id,
)
from tests.client.fake_daemon import FakeDaemon, ack, install, make_client, refuse, result

WRITE = new_write_id()
OTHER = new_write_id()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    return install(monkeypatch)


def make_run(items: int = 1) -> bytes:
    return encode_run([b"x"] * items, queue="crm", headers={WRITE_HEADER: WRITE.hex()})


def published(**members: Any) -> Callable[[int], bytes]:
    whole = {"outcome": "published", "write": WRITE.hex(), "items": 3, "published_ms": 7}
    return result(**(whole | members))


def cut(daemon: FakeDaemon) -> None:
    assert daemon.link is not None
    daemon.link.is_cut = True


def test_run_is_staged_under_the_ids_of_write_and_stage_as_it_is(daemon: FakeDaemon) -> None:
    stage = make_client().stage(WRITE)
    run = make_run(2)
    stage.submit(run)
    assert (stage.runs, stage.items) == (1, 2)
    write, stage_id, staged = unpack_stage(daemon.stages[0])
    assert (write, stage_id, bytes(staged)) == (WRITE, stage.id, run)


def test_two_stages_of_a_write_have_different_ids(daemon: FakeDaemon) -> None:
    client = make_client()
    assert client.stage(WRITE).id != client.stage(WRITE).id


def test_seal_says_what_was_staged_once_all_of_it_is_acknowledged(daemon: FakeDaemon) -> None:
    client = make_client()
    stage = client.stage(WRITE)
    daemon.on_stage = refuse("QUEUE_FULL", retry_after_ms=1000)
    stage.submit(make_run(2))
    daemon.on_stage = ack
    daemon.on_ask = result()
    stage.submit(make_run(3))
    expected = Sealed(WRITE, stage.id, 2, 5)
    assert stage.seal() == expected
    assert len(daemon.stages) == 3
    ids = {"write": WRITE.hex(), "stage": stage.id.hex()}
    assert daemon.asked == [{"op": "stage.seal", **ids, "runs": 2, "items": 5}]
    assert stage.seal() == expected
    assert len(daemon.asked) == 1
    with pytest.raises(ValueError, match="sealed"):
        stage.submit(make_run())


def test_stage_without_runs_is_sealed_without_a_word(daemon: FakeDaemon) -> None:
    stage = make_client().stage(WRITE)
    assert stage.seal() == Sealed(WRITE, stage.id, 0, 0)
    assert daemon.asked == []


def test_staged_run_is_sent_again_byte_by_byte_and_a_duplicate_counts(daemon: FakeDaemon) -> None:
    stage = make_client().stage(WRITE)
    daemon.on_stage = lambda _: None
    stage.submit(make_run(2))
    cut(daemon)
    daemon.on_stage = lambda sequence: ack(sequence, Outcome.DUPLICATE)
    daemon.on_ask = result()
    assert stage.seal() == Sealed(WRITE, stage.id, 1, 2)
    first, second = daemon.stages
    assert first == second


def test_window_bounds_the_staged_runs_in_flight(daemon: FakeDaemon) -> None:
    stage = make_client(timeout=5).stage(WRITE, window=3)
    daemon.on_stage = lambda _: None
    for _ in range(3):
        stage.submit(make_run())
    with pytest.raises(Unreachable):
        stage.submit(make_run())
    assert len(daemon.stages) == 3


@pytest.mark.parametrize("code", ["STAGE_OVER", "UNKNOWN_QUEUE", "BAD_RUN"])
def test_stage_with_a_run_that_was_refused_for_good_is_never_sealed(
    daemon: FakeDaemon, code: Code
) -> None:
    stage = make_client().stage(WRITE)
    daemon.on_stage = refuse(code)
    stage.submit(make_run())
    with pytest.raises(Refused, match=code):
        stage.seal()
    with pytest.raises(ForebayError, match="1 of 1 runs were refused"):
        stage.seal()
    assert daemon.asked == []


def test_publish_sends_its_stages_and_the_transaction(daemon: FakeDaemon) -> None:
    daemon.on_ask = published()
    outcome = make_client().publish(WRITE, [OTHER], app="feed", version=0)
    assert outcome == Published("published", WRITE, 3, 7)
    ids = {"write": WRITE.hex(), "stages": [OTHER.hex()]}
    assert daemon.asked == [{"op": "write.publish", **ids, "app": "feed", "version": 0}]


def test_publish_without_a_transaction_does_not_name_one(daemon: FakeDaemon) -> None:
    daemon.on_ask = published()
    make_client().publish(WRITE, [])
    assert daemon.asked == [{"op": "write.publish", "write": WRITE.hex(), "stages": []}]
    with pytest.raises(ValueError, match="both app and version"):
        make_client().publish(WRITE, [], app="feed")
    with pytest.raises(ValueError, match="both app and version"):
        make_client().publish(WRITE, [], version=1)


@pytest.mark.parametrize(
    "members, expected",
    [
        ({"outcome": "duplicate"}, Published("duplicate", WRITE, 3, 7)),
        (
            {"outcome": "duplicate", "write": None, "items": None, "published_ms": None},
            Published("duplicate", None, 0, 0),
        ),
    ],
)
def test_duplicate_tells_what_is_known_of_the_first(
    daemon: FakeDaemon, members: dict[str, Any], expected: Published
) -> None:
    daemon.on_ask = published(**members)
    assert make_client().publish(WRITE, [], app="feed", version=1) == expected


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DISK_FULL", "DISK_ERROR", "DRAINING"])
def test_publish_is_repeated_after_a_refusal_that_passes(daemon: FakeDaemon, code: Code) -> None:
    client = make_client()
    started = daemon.now

    def at_first(sequence: int) -> bytes:
        daemon.on_ask = published()
        return refuse(code, retry_after_ms=5000)(sequence)

    daemon.on_ask = at_first
    assert client.publish(WRITE, [OTHER]).outcome == "published"
    assert daemon.now - started >= 5
    first, second = daemon.asked
    assert first == second


def test_publish_whose_answer_is_lost_is_repeated(daemon: FakeDaemon) -> None:
    client = make_client()

    def lose(_: int) -> None:
        cut(daemon)
        daemon.on_ask = published(outcome="published")

    daemon.on_ask = lose
    assert client.publish(WRITE, [OTHER]).outcome == "published"
    assert len(daemon.asked) == 2


@pytest.mark.parametrize("code", ["NOT_FOUND", "BAD_REQUEST"])
def test_publish_that_is_refused_for_good_is_not_repeated(daemon: FakeDaemon, code: Code) -> None:
    daemon.on_ask = refuse(code)
    with pytest.raises(Refused, match=code):
        make_client().publish(WRITE, [OTHER])
    assert len(daemon.asked) == 1


@pytest.mark.parametrize("timeout", [None, 5, 600])
def test_publish_gives_up_at_its_timeout_and_says_that_the_outcome_is_unknown(
    daemon: FakeDaemon, timeout: float | None
) -> None:
    client = make_client(timeout=60)
    started = daemon.now
    daemon.on_ask = refuse("UNAVAILABLE", retry_after_ms=1000)
    about = f"not known whether the write {WRITE.hex()} is published: UNAVAIL"
    with pytest.raises(Unreachable, match=about):
        client.publish(WRITE, [OTHER], timeout=timeout)
    assert daemon.now - started == pytest.approx(timeout or 60, abs=2)


def test_connection_that_ends_for_good_leaves_the_outcome_unknown(daemon: FakeDaemon) -> None:
    denied = Refused("DENIED", "not you", fatal=True)
    daemon.on_ask = lambda _: wire.error(wire.CONNECTION, denied)
    with pytest.raises(Unreachable, match="is published: DENIED"):
        make_client().publish(WRITE, [OTHER])


def test_publish_that_was_given_up_is_not_sent_on_the_next_connection(daemon: FakeDaemon) -> None:
    client = make_client()
    daemon.on_ask = lambda _: None
    with pytest.raises(Unreachable):
        client.publish(WRITE, [OTHER], timeout=10)
    cut(daemon)
    daemon.on_ask = result(outcome="aborted", items=5)
    assert client.abort_write(WRITE) == Aborted("aborted", 5)
    assert [asked["op"] for asked in daemon.asked] == ["write.publish", "write.abort"]
    client.close()


def test_publish_that_was_given_up_is_not_sent_when_its_time_comes(daemon: FakeDaemon) -> None:
    client = make_client()
    daemon.on_ask = refuse("UNAVAILABLE", retry_after_ms=20_000)
    with pytest.raises(Unreachable):
        client.publish(WRITE, [OTHER], timeout=10)

    def at_first(sequence: int) -> bytes:
        daemon.on_ask = result(outcome="aborted", items=5)
        return refuse("UNAVAILABLE", retry_after_ms=30_000)(sequence)

    daemon.on_ask = at_first
    assert client.abort_write(WRITE) == Aborted("aborted", 5)
    assert [asked["op"] for asked in daemon.asked] == [
        "write.publish",
        "write.abort",
        "write.abort",
    ]
    client.close()


def test_late_answer_to_what_was_given_up_disturbs_nothing(daemon: FakeDaemon) -> None:
    client = make_client(timeout=60)
    sequences: list[int] = []
    daemon.on_ask = sequences.append
    with pytest.raises(Unreachable):
        client.publish(WRITE, [OTHER])
    assert daemon.link is not None
    daemon.link.say(published()(sequences[0]))
    daemon.on_ask = result(outcome="published", items=3)
    assert client.abort_write(WRITE) == Aborted("published", 3)


@pytest.mark.parametrize(
    "members",
    [{"outcome": "perhaps"}, {"outcome": None}, {"write": "xy"}, {"write": "00"}, {"items": "3"}],
)
def test_answer_that_makes_no_sense_is_a_bad_frame(
    daemon: FakeDaemon, members: dict[str, Any]
) -> None:
    daemon.on_ask = published(**members)
    with pytest.raises(BadFrame):
        make_client().publish(WRITE, [])


@pytest.mark.parametrize("wrong", ["", "12", "g" * 32, b"", b"x" * 15, b"x" * 17])
def test_id_of_another_form_is_a_value_error(wrong: bytes | str) -> None:
    with pytest.raises(ValueError, match="id"):
        write_id(wrong)


def test_id_may_have_dashes() -> None:
    text = "0198c0de-0a00-7000-8000-000000000001"
    assert write_id(text) == write_id(text.replace("-", "")) == bytes.fromhex(text.replace("-", ""))


def test_stage_of_no_write_is_a_value_error(daemon: FakeDaemon) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Stage(make_client()._exchange, b"short")


def test_claim_is_asked_for_again_until_the_store_answers(daemon: FakeDaemon) -> None:
    client = make_client()

    def at_first(sequence: int) -> bytes:
        daemon.on_ask = result(claim=4, rows=2, items=9, bytes=100, backlog=50)
        return refuse("UNAVAILABLE")(sequence)

    daemon.on_ask = at_first
    claim = client.claim("crm", "nightly", after=3, items=10)
    assert (claim.number, claim.rows, claim.items, claim.bytes, claim.backlog) == (4, 2, 9, 100, 50)
    asked = {"op": "streams.claim", "queue": "crm", "consumer": "nightly", "after": 3, "items": 10}
    assert daemon.asked == [asked, asked]


def test_nothing_to_claim_has_no_number(daemon: FakeDaemon) -> None:
    daemon.on_ask = result(claim=None, rows=0, items=0, bytes=0, backlog=0)
    assert make_client().claim("crm", "nightly", after=0).number is None


def test_status_and_drop_of_a_consumer(daemon: FakeDaemon) -> None:
    client = make_client()
    daemon.on_ask = result(acknowledged=3, claim=None, rows=None, items=0, bytes=0, backlog=8)
    status = client.stream_status("crm", "nightly")
    assert (status.acknowledged, status.claim, status.rows, status.backlog) == (3, None, 0, 8)
    daemon.on_ask = result(released=12)
    assert client.stream_drop("crm", "nightly") == 12
    assert [asked["op"] for asked in daemon.asked] == ["streams.show", "streams.rm"]


def test_fetch_and_peek_ask_for_what_was_said_and_read_the_rows(daemon: FakeDaemon) -> None:
    client = make_client()
    rows = [FetchedRow(5, 17, 2, 0b101, make_run(3)), FetchedRow(6, 0, 0, None, make_run())]
    about: dict[str, Any] = {"next": 7}
    daemon.on_ask = lambda sequence: wire.frame(Kind.FETCHED, sequence, pack_fetched(about, rows))
    fetched = client.fetch("crm", "nightly", 4, first=5, rows=2, bytes_max=100)
    assert (fetched.rows, fetched.next, fetched.cursor) == (rows, 7, None)
    about = {"cursor": "abc"}
    peeked = client.peek("crm", "cold", cursor="xyz")
    assert (peeked.next, peeked.cursor) == (None, "abc")
    of_claim = {"consumer": "nightly", "claim": 4, "first": 5, "rows": 2, "bytes": 100}
    of_look = {"state": "cold", "cursor": "xyz"}
    assert daemon.asked == [{"queue": "crm", **of_claim}, {"queue": "crm", **of_look}]


def test_fetch_is_repeated_until_the_store_answers(daemon: FakeDaemon) -> None:
    def at_first(sequence: int) -> bytes:
        daemon.on_ask = lambda again: wire.frame(Kind.FETCHED, again, pack_fetched({}, []))
        return refuse("UNAVAILABLE")(sequence)

    daemon.on_ask = at_first
    assert make_client().fetch("crm", "nightly", 1).rows == []
    assert len(daemon.asked) == 2
