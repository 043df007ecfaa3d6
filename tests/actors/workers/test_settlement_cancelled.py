"""Outcomes whose teller is cancelled while the cold store hangs are recorded all the same."""

import os
from collections.abc import Sequence
from typing import cast

import pytest
import trio
import trio.testing

from actors.model.outcomes import Conclusion
from actors.model.slices import InCold, InJournal, LentRun, Slice
from actors.observers.batch import Batch
from actors.observers.tallies import Tallies
from actors.ports.tiers import ColdQueue, RowOutcome, StoreUnavailable
from actors.spooler import spooler as spooler_module
from actors.spooler.messages import Drain, Settle
from actors.tiers.tiers import Tiers
from actors.tiers.warm import MemoryWarm
from actors.workers.pull import Holdings, Pull
from actors.workers.pull_reports import PullSettling
from actors.workers.settlement import Settlement
from actors.workers.settler import AT_ONCE_MAX, INBOX, NO_LIMITS
from forebay.lease_frames import LeaseWish
from forebay.run import encode_run, read_head
from tests.rig.tiers_alone import make_tiers, sent_to_spooler

LEASES = INBOX + AT_ONCE_MAX + 50


class Hanging:
    """A cold store that answers nothing until its deadline, which is a pull's own and more."""

    def __init__(self) -> None:
        self.is_away = True
        self.rows: list[bytes] = []

    async def renew(self, locks: Sequence[bytes], _lease_s: float) -> list[int]:
        if self.is_away:
            raise StoreUnavailable("hanging")
        return [1] * len(locks)

    async def settle(
        self, outcomes: Sequence[RowOutcome], *, is_durable: bool = False
    ) -> list[bool]:
        if self.is_away:
            await trio.sleep(10)
            raise StoreUnavailable("it hangs")
        self.rows += [outcome.row for outcome in outcomes]
        return [True] * len(outcomes)

    async def sync(self) -> None:
        pass


def now_ms() -> int:
    return round(trio.current_time() * 1000)


class NoObserver:
    """An observer that keeps nothing."""

    def settled(self, batch: Batch) -> None:
        """Every batch is forgotten."""


def make(warm: MemoryWarm, hanging: Hanging) -> tuple[Tiers, Settlement]:
    tiers = make_tiers(warm, cast(ColdQueue, hanging), now_ms)
    return tiers, Settlement(tiers, NoObserver())


async def test_leases_that_run_out_while_the_cold_store_hangs_are_recorded_when_it_is_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    warm, hanging = MemoryWarm(now_ms=now_ms), Hanging()
    tiers, settlement = make(warm, hanging)
    catalogue = tiers.states.catalogue
    settling = PullSettling(settlement, catalogue, now_ms)
    pull = Pull(warm, settling, catalogue, Tallies(), now_ms)
    rows = [os.urandom(16) for _ in range(LEASES)]
    for row in rows:
        data = encode_run([b"x"], queue="crm")
        run = LentRun(read_head(data), data, InCold(row, bytes(16)))
        await warm.enter("crm", [Slice(run, 1)], NO_LIMITS)
    async with trio.open_nursery() as nursery:
        await nursery.start(settlement.run)
        while await pull.lease(LeaseWish("crm", lease_ms=1000, keep=True), Holdings()):
            pass
        nursery.start_soon(pull.run, trio.Event())
        await trio.sleep(60)
        hanging.is_away = False
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert sorted(hanging.rows) == sorted(rows)
    assert (tiers.states.of("crm").unrecorded, settlement.unrecorded_rows) == (0, set())


async def test_what_the_spooler_had_no_room_for_is_told_when_it_has(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooler_module, "INBOX", 1)
    warm, hanging = MemoryWarm(now_ms=now_ms), Hanging()
    hanging.is_away = False
    tiers, settlement = make(warm, hanging)
    inbox = sent_to_spooler(tiers)
    data = encode_run([b"x"], queue="crm")
    run = LentRun(read_head(data), data, InJournal(7, 0))
    await warm.enter("crm", [Slice(run, 1)], NO_LIMITS)
    (leased,) = await warm.lease("crm", 1, 1000, 600)
    tiers.spooler.client.send_nowait(Drain())
    async with trio.open_nursery() as nursery:
        await nursery.start(settlement.run)
        given_up = trio.CancelScope(deadline=trio.current_time() + 30)

        async def settle() -> None:
            with given_up:
                await settlement.settle("crm", [leased], [Conclusion(1)])

        nursery.start_soon(settle)
        await trio.sleep(31)
        assert isinstance(inbox.receive_nowait(), Drain)
        with trio.fail_after(60):
            told = await inbox.receive()
        nursery.cancel_scope.cancel()
    assert given_up.cancelled_caught
    assert isinstance(told, Settle)
    assert len(told.outcomes) == 1
