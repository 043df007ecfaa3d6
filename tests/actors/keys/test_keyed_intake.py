"""The keyed intake: pushes share transactions, and every one is answered."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from actors.keys.intake import KeyedIntake
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.keys import KeyRule, Offer
from actors.ports.tiers import StoreUnavailable
from actors.spooler.arrivals import QueueSeen
from actors.spooler.messages import OfferRun
from actors.spooler.spooler import Spooler
from actors.tiers.warm import MemoryWarm
from daemon.stores.sqlite.store import SqliteCold
from forebay.errors import Refused
from forebay.keyed import KeyOutcome
from forebay.run import encode_run, read_head
from tests.eventually import eventually
from tests.rig.tiers_alone import make_tiers

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome


@dataclass
class Replies:
    """What a connection was told."""

    said: dict[int, list[int] | str] = field(default_factory=dict)
    flushed: int = 0

    def answer(self, sequence: int, data: bytes) -> None:
        self.said[sequence] = list(data[13:])

    def refuse(self, sequence: int, refused: Refused) -> None:
        assert refused.retryable == (refused.code not in ("BAD_RUN", "INTERNAL"))
        self.said[sequence] = refused.code

    def flush(self) -> None:
        self.flushed += 1


def ignoring(_: str) -> KeyRule:
    return KeyRule("ignore")


class Desk:
    """An intake with a real store, and a connection."""

    def __init__(self, cold: SqliteCold) -> None:
        self.cold = cold
        self.replies = Replies()
        self.woken: list[str] = []
        self.sequence = 0
        self.tiers = make_tiers(MemoryWarm(), cold)
        self.tiers.wake = self._wake  # type: ignore[method-assign]
        self.seen = self.tiers.spooler.arrivals.inbox
        self.recent = self.tiers.spooler.recent
        self.intake = KeyedIntake(self.tiers)
        self.pushes = self.intake.offers

    def _wake(self, queue: str, priority: int | None = None) -> None:
        self.woken.append(queue)

    def push(self, *keys: bytes, headers: dict[str, str] | None = None, data: bytes = b"") -> None:
        self.sequence += 1
        data = data or encode_run([b"x"] * len(keys), queue="q", keys=keys, headers=headers)
        self.pushes.send_nowait(OfferRun(read_head(data), data, self.replies, self.sequence))


@pytest.fixture
async def desk(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Desk]:
    cold = SqliteCold(tmp_path / "cold.db", 60.0, ballast_bytes=0)
    await cold.open()
    cold.keep_keys(ignoring)
    yield Desk(cold)
    await cold.close()


async def test_pushes_that_wait_share_a_transaction(desk: Desk) -> None:
    for _ in range(5):
        desk.push(b"a", b"b")
    desk.push(b"c")
    desk.pushes.close()
    await desk.intake.run()
    assert desk.replies.said == {
        1: [CREATED, CREATED],
        **{number: [IGNORED, IGNORED] for number in range(2, 6)},
        6: [CREATED],
    }
    # One group: one flush, and the promoter woken once.
    assert (desk.replies.flushed, desk.woken) == (1, ["q"])
    assert desk.seen.receive_nowait() == QueueSeen("q")
    assert desk.intake.figures() == {"created": 3, "updated": 0, "ignored": 8, "conflict": 0}


async def test_bad_runs_are_refused_alone(desk: Desk) -> None:
    good = encode_run([b"x"], queue="q", keys=[b"a"], compressed=False)
    bad = bytearray(good)
    # The offsets of the keys make no sense any more; the header is sound.
    bad[read_head(good).head_bytes :] = b"\xff" * (len(good) - read_head(good).head_bytes)
    desk.push(b"a", b"b", headers={"forebay-only-if": "x"})
    desk.push(data=bytes(bad))
    desk.push(b"a", headers={"forebay-write": "ab" * 16})
    desk.push(b"a")
    desk.pushes.close()
    await desk.intake.run()
    assert desk.replies.said == {1: "BAD_RUN", 2: "BAD_RUN", 3: "BAD_RUN", 4: [CREATED]}


async def test_while_the_store_is_away_pushes_are_refused_for_now(
    desk: Desk, nursery: trio.Nursery, autojump_clock: object
) -> None:
    await nursery.start(desk.intake.run)
    await desk.cold.close()
    desk.push(b"a")
    await eventually(lambda: 1 in desk.replies.said)
    assert desk.replies.said == {1: "UNAVAILABLE"}
    with pytest.raises(StoreUnavailable):
        await desk.cold.totals()
    await desk.cold.open()
    desk.push(b"a")
    await eventually(lambda: 2 in desk.replies.said)
    assert desk.replies.said[2] == [CREATED]


async def test_a_low_disk_refuses_pushes_for_now(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spooler, "disk_is_low", property(lambda _: True))
    desk.push(b"a")
    desk.pushes.close()
    await desk.intake.run()
    assert desk.replies.said == {1: "DISK_FULL"}
    assert await desk.cold.totals() == {}


async def test_bug_fails_the_push_that_meets_it_and_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = desk.cold.offer

    async def failing(offers: Sequence[Offer]) -> list[bytes]:
        answers = await offer(offers)
        keys = [key for one in offers for key in one.run.keys(0, 1)]
        if b"bad" in keys:
            raise OverflowError("a bug")
        return answers

    monkeypatch.setattr(desk.cold, "offer", failing)
    before = INTERNAL_ERRORS.total
    for key in (b"a", b"bad", b"c"):
        desk.push(key)
    desk.pushes.close()
    await desk.intake.run()
    # The transaction of the three was committed: each is told what was decided then.
    assert desk.replies.said == {1: [CREATED], 2: "INTERNAL", 3: [CREATED]}
    assert INTERNAL_ERRORS.total == before + 1
