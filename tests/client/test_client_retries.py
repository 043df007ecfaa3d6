"""When the client tries again, and when it gives up: on a clock and a link of the test's own."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from forebay import wire
from forebay.errors import Code, Refused, Unreachable
from forebay.link import Cut, Frame, NotAllowed
from forebay.run import encode_run
from forebay.wire import Outcome
from forebay.writes import WRITE_HEADER, new_write_id
from tests.client.fake_daemon import FakeDaemon, ack, install, make_client, refuse

RUN = encode_run([b"x"], queue="crm")


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    return install(monkeypatch)


@pytest.mark.parametrize("code", ["QUEUE_FULL", "DISK_FULL", "DISK_ERROR", "DRAINING"])
def test_refusal_that_passes_is_tried_again_after_the_time_the_daemon_names(
    daemon: FakeDaemon, code: Code
) -> None:
    client = make_client()
    daemon.on_push = refuse(code, retry_after_ms=5000)
    client.submit(RUN)
    first = daemon.now

    def second_try(sequence: int) -> bytes:
        daemon.on_push = ack
        return refuse(code, 7000)(sequence)

    daemon.on_push = second_try
    assert client.drain() == (1, 1, 0)
    times = [at - first for at, _ in daemon.pushes]
    assert times == [0, pytest.approx(5), pytest.approx(12)]
    assert {data for _, data in daemon.pushes} == {RUN}


def test_refusal_without_a_time_is_tried_again_less_and_less_often(daemon: FakeDaemon) -> None:
    client = make_client(timeout=20)
    daemon.on_push = refuse("QUEUE_FULL")
    with pytest.raises(Refused, match="QUEUE_FULL"):
        client.push("crm", ["x"])
    times = [at for at, _ in daemon.pushes]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[0] == pytest.approx(0.05)
    assert gaps[-1] == pytest.approx(2)


def test_refusal_that_does_not_pass_in_time_is_raised_and_the_run_kept(daemon: FakeDaemon) -> None:
    client = make_client(timeout=60)
    daemon.on_push = refuse("DISK_FULL", retry_after_ms=1000)
    started = daemon.now
    client.submit(RUN)
    with pytest.raises(Refused, match="DISK_FULL"):
        client.drain()
    assert daemon.now - started == pytest.approx(60, abs=2)
    assert client.unacknowledged == 1
    daemon.on_push = ack
    assert client.drain() == (1, 1, 0)


def full(daemon: FakeDaemon, code: Code, after_s: float) -> Callable[[int], None]:
    """A daemon that makes each try wait for room, and then refuses it."""

    def on_request(sequence: int) -> None:
        link = daemon.link
        assert link is not None
        hear = link.receive

        def receive(timeout: float) -> list[Frame]:
            if refused_at - daemon.now > timeout:
                return hear(timeout)
            daemon.now = max(daemon.now, refused_at)
            link.receive = hear  # type: ignore[method-assign]
            link.say(refuse(code, retry_after_ms=100)(sequence))
            return hear(0)

        refused_at = daemon.now + after_s
        link.receive = receive  # type: ignore[method-assign]

    return on_request


@pytest.mark.parametrize("code", ["QUEUE_FULL", "DISK_FULL"])
def test_refusal_is_the_reason_though_the_last_try_is_not_answered_in_time(
    daemon: FakeDaemon, code: Code
) -> None:
    """The queue's `full_timeout` is 25 s: refused at 25 and 50, the third try waits at 60."""
    client = make_client(timeout=60)
    daemon.on_push = full(daemon, code, 25)
    started = daemon.now
    client.submit(RUN)
    with pytest.raises(Refused, match=code) as caught:
        client.drain()
    assert daemon.now - started == pytest.approx(60)
    assert len(daemon.pushes) == 3
    assert caught.value.__notes__ == ["1 runs are not acknowledged"]


def test_refusal_of_a_staged_run_is_the_reason_as_well(daemon: FakeDaemon) -> None:
    client = make_client(timeout=60)
    daemon.on_stage = full(daemon, "QUEUE_FULL", 25)
    stage = client.stage(new_write_id())
    stage.submit(encode_run([b"x"], queue="crm", headers={WRITE_HEADER: stage.write.hex()}))
    with pytest.raises(Refused, match="QUEUE_FULL"):
        stage.seal()


def test_refusal_that_another_request_had_is_no_reason(daemon: FakeDaemon) -> None:
    client = make_client(timeout=60)
    daemon.on_push = refuse("QUEUE_FULL", retry_after_ms=59_000)
    client.submit(RUN)
    with pytest.raises(Unreachable, match="did not answer for 60 s"):
        client.control("dead.find")


def test_daemon_that_falls_silent_after_a_refusal_is_unreachable_in_the_next_wait(
    daemon: FakeDaemon,
) -> None:
    client = make_client(timeout=60)
    daemon.on_push = refuse("QUEUE_FULL", retry_after_ms=1000)
    client.submit(RUN)
    with pytest.raises(Refused, match="QUEUE_FULL"):
        client.drain()
    daemon.on_push = lambda _: None
    with pytest.raises(Unreachable, match="did not answer for 60 s"):
        client.drain()


def test_every_acknowledgement_gives_the_rest_its_full_time(daemon: FakeDaemon) -> None:
    """100 runs, each of which takes half of the timeout, take 50 times as long as it."""
    client = make_client(timeout=60)
    tries: dict[bytes, int] = {}

    def on_push(sequence: int) -> bytes:
        data = daemon.pushes[-1][1]
        tries[data] = tries.get(data, 0) + 1
        return ack(sequence) if tries[data] > 1 else refuse("QUEUE_FULL", 30_000)(sequence)

    daemon.on_push = on_push
    assert client.push("crm", map(str, range(100)), run_items=1, window=1) == (100, 100, 0)


def test_every_acknowledgement_of_a_drain_gives_the_rest_its_full_time(
    daemon: FakeDaemon,
) -> None:
    """8 runs, one acknowledged every 50 s, take 400 s, with a timeout of 60 s."""
    client = make_client(timeout=60)
    started = daemon.now

    def on_push(sequence: int) -> bytes:
        index = runs.index(daemon.pushes[-1][1])
        is_time = daemon.now >= started + 50 * (index + 1)
        return ack(sequence) if is_time else refuse("QUEUE_FULL", 1000)(sequence)

    runs = [encode_run([b"%d" % index], queue="crm") for index in range(8)]
    daemon.on_push = on_push
    for run in runs:
        client.submit(run)
    assert client.drain() == (8, 8, 0)
    assert daemon.now - started >= 400


def test_close_waits_for_what_is_unacknowledged(daemon: FakeDaemon) -> None:
    client = make_client()
    daemon.on_push = refuse("QUEUE_FULL", retry_after_ms=1000)
    client.submit(RUN)
    daemon.on_push = ack
    client.close()
    assert client.unacknowledged == 0
    assert len(daemon.pushes) == 2


def test_postponed_runs_count_for_the_window(daemon: FakeDaemon) -> None:
    client = make_client(timeout=60)
    daemon.on_push = refuse("QUEUE_FULL", retry_after_ms=1000)
    for _ in range(3):
        client.submit(encode_run([b"x"], queue="crm"), window=3)
    with pytest.raises(Refused, match="QUEUE_FULL"):
        client.submit(encode_run([b"x"], queue="crm"), window=3)
    assert client.unacknowledged == 3
    assert len({data for _, data in daemon.pushes}) == 3


def test_daemon_that_does_not_answer_is_unreachable_after_the_timeout(daemon: FakeDaemon) -> None:
    client = make_client(timeout=60)
    daemon.on_push = lambda _: None
    started = daemon.now
    client.submit(RUN)
    with pytest.raises(Unreachable, match=r"/d.sock did not answer for 60 s") as caught:
        client.drain()
    assert daemon.now - started == pytest.approx(60)
    assert caught.value.__notes__ == ["1 runs are not acknowledged"]
    assert client.unacknowledged == 1


def test_first_reconnect_is_tried_at_once_and_later_ones_with_growing_pauses(
    daemon: FakeDaemon,
) -> None:
    client = make_client(timeout=60)
    daemon.on_push = lambda _: None
    client.submit(RUN)
    assert daemon.link is not None
    daemon.link.is_cut = True
    daemon.is_up = False
    lost_at = daemon.now
    with pytest.raises(Unreachable, match="no process listens"):
        client.drain()
    tries = [at - lost_at for at in daemon.connects[1:]]
    assert tries[0] == 0
    assert 15 < len(tries) < 100
    assert max(b - a for a, b in pairwise(tries)) <= 2
    assert 59 <= daemon.now - lost_at <= 61


def test_unacknowledged_runs_are_sent_again_in_order_and_acknowledged_ones_are_not(
    daemon: FakeDaemon,
) -> None:
    client = make_client()
    runs = [encode_run([b"%d" % index], queue="crm") for index in range(5)]
    daemon.on_push = lambda sequence: ack(sequence) if sequence in (1, 3) else None
    for run in runs:
        client.submit(run)
    assert daemon.link is not None
    daemon.link.is_cut = True
    daemon.on_push = lambda sequence: ack(sequence, Outcome.DUPLICATE)
    assert client.drain() == (5, 5, 3)
    assert [data for _, data in daemon.pushes[5:]] == [runs[1], runs[3], runs[4]]


def test_connection_that_is_lost_again_while_sending_again_loses_nothing(
    daemon: FakeDaemon,
) -> None:
    client = make_client()
    daemon.on_push = lambda _: None
    runs = [encode_run([b"%d" % index], queue="crm") for index in range(5)]
    for run in runs:
        client.submit(run)
    assert daemon.link is not None
    daemon.link.is_cut = True

    def die_at_the_third(sequence: int) -> None:
        if len(daemon.pushes) == 8 and daemon.link is not None:
            daemon.link.is_cut = True
            daemon.on_push = ack

    daemon.on_push = die_at_the_third
    assert client.drain() == (5, 5, 0)
    assert [data for _, data in daemon.pushes[8:]] == runs


@pytest.mark.parametrize("code", ["DRAINING", "TIMEOUT", "BUSY"])
def test_fatal_error_that_passes_makes_a_new_connection(daemon: FakeDaemon, code: Code) -> None:
    client = make_client()
    refused = Refused(code, "later", retry_after_ms=3000, fatal=True)
    daemon.on_push = lambda _: wire.error(wire.CONNECTION, refused)
    client.submit(RUN)
    daemon.on_push = ack
    assert client.drain() == (1, 1, 0)
    assert len(daemon.connects) == 2


@pytest.mark.parametrize("code", ["BAD_FRAME", "DENIED", "VERSION"])
def test_fatal_error_that_does_not_pass_is_raised(daemon: FakeDaemon, code: Code) -> None:
    client = make_client()
    daemon.on_push = lambda _: wire.error(wire.CONNECTION, Refused(code, "no", fatal=True))
    client.submit(RUN)
    with pytest.raises(Refused, match=code):
        client.drain()
    assert client.unacknowledged == 1
    assert len(daemon.connects) == 1


def test_last_words_are_heard_though_the_write_failed(daemon: FakeDaemon) -> None:
    client = make_client()
    assert daemon.link is not None
    daemon.link.say(wire.error(wire.CONNECTION, Refused("DENIED", "not you", fatal=True)))
    daemon.link.is_cut = True
    with pytest.raises(Refused, match="not you"):
        client.push("crm", ["x"])


def test_acknowledgements_before_the_loss_count(daemon: FakeDaemon) -> None:
    client = make_client()
    client.submit(RUN)
    assert daemon.link is not None
    daemon.link.is_cut = True
    client.submit(encode_run([b"y"], queue="crm"))
    assert client.drain() == (2, 2, 0)
    assert [data for _, data in daemon.pushes].count(RUN) == 1


def test_questions_are_asked_again_on_a_new_connection(daemon: FakeDaemon) -> None:
    client = make_client()
    assert daemon.link is not None
    daemon.link.is_cut = True
    daemon.report = {"daemon": {}}
    assert client.stats() == {"daemon": {}}
    assert len(daemon.connects) == 2


def test_daemon_must_be_there_at_first_unless_it_is_waited_for(daemon: FakeDaemon) -> None:
    daemon.is_up = False
    started = daemon.now
    with pytest.raises(Unreachable, match="no process listens"):
        make_client(timeout=60)
    assert daemon.now == started
    with pytest.raises(Unreachable, match="no process listens"):
        make_client(timeout=60, wait=10)
    assert 10 <= daemon.now - started <= 12


def test_daemon_that_appears_in_time_is_found(daemon: FakeDaemon) -> None:
    daemon.is_up = False

    def appear() -> None:
        daemon.is_up = daemon.now > 1005

    daemon.on_connect = appear
    assert make_client(wait=10).path == Path("/d.sock")


def test_busy_daemon_is_waited_for_from_the_start(daemon: FakeDaemon) -> None:
    def refuse_at_first() -> None:
        if daemon.now < 1030:
            raise Refused("BUSY", "all taken", retry_after_ms=1000, fatal=True)

    daemon.on_connect = refuse_at_first
    assert make_client(timeout=60).path == Path("/d.sock")


def test_daemon_that_is_just_being_replaced_is_waited_for_from_the_start(
    daemon: FakeDaemon,
) -> None:
    def end_before_the_welcome() -> None:
        if daemon.now < 1030:
            raise Cut("/d.sock closed the connection")

    daemon.on_connect = end_before_the_welcome
    assert make_client(timeout=60).path == Path("/d.sock")


def test_daemon_that_ends_every_connection_is_given_up(daemon: FakeDaemon) -> None:
    def end_before_the_welcome() -> None:
        raise Cut("/d.sock closed the connection")

    daemon.on_connect = end_before_the_welcome
    started = daemon.now
    with pytest.raises(Unreachable, match="closed the connection"):
        make_client(timeout=60)
    assert 60 <= daemon.now - started <= 63


def test_daemon_that_ends_and_does_not_come_back_is_not_waited_for(daemon: FakeDaemon) -> None:
    def end_for_good() -> None:
        if daemon.is_up:
            daemon.is_up = False
            raise Cut("/d.sock closed the connection")

    daemon.on_connect = end_for_good
    started = daemon.now
    with pytest.raises(Unreachable, match="no process listens"):
        make_client(timeout=60)
    assert daemon.now - started <= 1


def test_permission_denied_is_not_tried_again(daemon: FakeDaemon) -> None:
    def deny() -> None:
        raise NotAllowed("permission denied")

    daemon.on_connect = deny
    with pytest.raises(Unreachable, match="permission denied"):
        make_client(wait=60)
    assert len(daemon.connects) == 1
