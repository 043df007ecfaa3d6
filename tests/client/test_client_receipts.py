"""Receipts, and waiting for them: on a clock and a link of the test's own."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from forebay.errors import BadFrame, ForebayError, Refused
from forebay.receipts import PAUSE_MAX_S, Receipt, StillPending
from tests.client.fake_daemon import FakeDaemon, install, make_client, refuse, result

WRITE = bytes.fromhex("0198c0de0a0070008000000000000001")
MEMBERS: dict[str, Any] = {
    "write": WRITE.hex(),
    "published_ms": 1_755_000_000_000,
    "app": "feed",
    "version": 17,
    "queues": ["crm"],
    "accepted": 10,
    "delivered": 4,
    "dead": 1,
    "dropped": 0,
    "deleted": 0,
    "lost": 0,
    "pending": 5,
}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    return install(monkeypatch)


def settle_one_a_time(daemon: FakeDaemon, pending: int = 5) -> Callable[[int], bytes]:
    """Each time it is asked for, one item more is delivered."""
    left = iter(range(pending, -1, -1))

    def answer(sequence: int) -> bytes:
        now = next(left)
        return result(**MEMBERS | {"delivered": 9 - now, "pending": now})(sequence)

    return answer


def test_receipt_is_read_and_can_be_written_as_it_came(daemon: FakeDaemon) -> None:
    daemon.on_ask = result(**MEMBERS, another="member")
    receipt = make_client().receipt("0198c0de-0a00-7000-8000-000000000001")
    assert receipt == Receipt(WRITE, 1_755_000_000_000, "feed", 17, ("crm",), 10, 4, 1, 0, 0, 0, 5)
    assert receipt.as_dict() == MEMBERS
    assert daemon.asked == [{"op": "receipt.show", "write": WRITE.hex()}]


def test_copy_of_a_receipt_has_its_figures_alone(daemon: FakeDaemon) -> None:
    daemon.on_ask = result(**MEMBERS)
    receipt = make_client().receipt(WRITE)
    assert pickle.loads(pickle.dumps(receipt)) == receipt


@pytest.mark.parametrize(
    "detach",
    [
        copy.copy,
        lambda receipt: pickle.loads(pickle.dumps(receipt)),
        lambda receipt: Receipt(**asdict(receipt)),
    ],
    ids=["copied", "pickled", "made of its figures, as Spark does"],
)
def test_receipt_without_a_client_says_what_to_call(
    daemon: FakeDaemon, detach: Callable[[Receipt], Receipt]
) -> None:
    daemon.on_ask = result(**MEMBERS)
    receipt = detach(make_client().receipt(WRITE))
    with pytest.raises(ForebayError) as raised:
        receipt.wait()
    assert f"client.wait_receipt('{WRITE.hex()}')" in str(raised.value)
    assert f"`forebay receipt {WRITE.hex()} --wait`" in str(raised.value)


def test_waiting_ends_when_nothing_is_pending_and_shows_every_step(daemon: FakeDaemon) -> None:
    daemon.on_ask = settle_one_a_time(daemon)
    seen: list[int] = []
    receipt = make_client().wait_receipt(WRITE, progress=lambda each: seen.append(each.pending))
    assert seen == [5, 4, 3, 2, 1, 0]
    assert (receipt.delivered, receipt.pending) == (9, 0)


def test_receipt_waits_for_itself(daemon: FakeDaemon) -> None:
    daemon.on_ask = settle_one_a_time(daemon)
    assert make_client().receipt(WRITE).wait(timeout=60).pending == 0


def test_waiting_asks_at_once_then_less_often_and_once_a_second_in_the_end(
    daemon: FakeDaemon,
) -> None:
    daemon.on_ask = result(**MEMBERS)
    moments: list[float] = []
    with pytest.raises(StillPending, match="5 of 10 items are still pending") as late:
        make_client().wait_receipt(
            WRITE, timeout=100, progress=lambda _: moments.append(daemon.now - 1000)
        )
    assert late.value.receipt.pending == 5
    assert moments[0] == 0
    assert moments[-1] - moments[-3] <= 2 * PAUSE_MAX_S
    assert 100 <= len(moments) <= 110
    assert daemon.now == pytest.approx(1100)


def test_timeout_of_0_looks_once(daemon: FakeDaemon) -> None:
    daemon.on_ask = result(**MEMBERS)
    with pytest.raises(StillPending):
        make_client().wait_receipt(WRITE, timeout=0)
    assert len(daemon.asked) == 1


def test_receipt_that_is_gone_is_refused(daemon: FakeDaemon) -> None:
    daemon.on_ask = refuse("NOT_FOUND")
    with pytest.raises(Refused, match="NOT_FOUND"):
        make_client().wait_receipt(WRITE)


@pytest.mark.parametrize("name", ["write", "published_ms", "queues", "accepted", "pending"])
@pytest.mark.parametrize("value", [None, "x", [1], True])
def test_receipt_with_a_wrong_member_is_a_bad_frame(
    daemon: FakeDaemon, name: str, value: object
) -> None:
    daemon.on_ask = result(**MEMBERS | {name: value})
    with pytest.raises(BadFrame, match=name):
        make_client().receipt(WRITE)
