"""A daemon keeps its row in the fleet's list, and no living daemon is ever called lost."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.fleet.members import BEAT_S, JOURNAL_S, LOST_MS, SETTLE_S, SWEEP_S, Counted, Heartbeat
from actors.fleet.members import rates as rates_of
from actors.model.books import Totals
from actors.ports.fleet import MemberReport
from tests.actors.fleet.member_table import START_MS, FakeJournal, Table, TableOf, as_port, now_ms

THIS, OTHER, GONE = b"this daemon.....", b"the other daemon", b"one that is gone"
LOST_S = LOST_MS / 1000


class Beating:
    """A daemon whose heartbeat runs."""

    def __init__(self, table: Table, daemon: bytes) -> None:
        self.journal = FakeJournal()
        self.rows: TableOf = table.of(daemon)
        self.heart = Heartbeat(as_port(self.rows), daemon, self.journal.tiers)
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.journal.run)
                nursery.start_soon(self.heart.run)

    def kill(self) -> None:
        """Nothing more is written."""
        self.scope.cancel()

    async def states(self) -> dict[bytes, str]:
        return {each.member.daemon: each.state for each in (await self.heart.list()).daemons}


Start = Callable[[bytes], Beating]


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
async def start(table: Table, nursery: trio.Nursery) -> Start:
    def start_one(daemon: bytes) -> Beating:
        made = Beating(table, daemon)
        nursery.start_soon(made.run)
        return made

    return start_one


async def test_the_row_is_written_at_the_start_and_then_regularly(
    start: Start, autojump_clock: MockClock
) -> None:
    this = start(THIS)
    await trio.sleep(3.5 * BEAT_S)
    assert [at for at, _ in this.rows.notes] == [0, BEAT_S, 2 * BEAT_S, 3 * BEAT_S]
    assert [note.is_first for _, note in this.rows.notes] == [True, False, False, False]
    assert [note.up_ms for _, note in this.rows.notes][:2] == [0, BEAT_S * 1000]


async def test_it_reports_what_the_journal_holds_and_what_this_daemon_does_per_second(
    start: Start, autojump_clock: MockClock
) -> None:
    this = start(THIS)
    this.journal.books = Totals(accepted=1000, delivered=400, handed_over=100)
    await trio.sleep(BEAT_S / 2)
    assert this.rows.reports == [MemberReport(backlog=500)]
    this.journal.books = Totals(accepted=1100, delivered=410, handed_over=690)
    this.journal.staged = 7
    this.rows.shared = this.rows.shared._replace(accepted=50, delivered=40)
    await trio.sleep(BEAT_S)
    accepted, delivered = 150 / BEAT_S, 50 / BEAT_S
    assert this.rows.reports[1] == MemberReport("running", 7, accepted, delivered)
    await trio.sleep(BEAT_S)
    assert this.rows.reports[2] == MemberReport("running", 7, 0.0, 0.0)


def test_rates_are_never_negative() -> None:
    now = Counted(10.0, 5, 5)
    assert rates_of(None, now) == (0.0, 0.0)
    assert rates_of(now, now) == (0.0, 0.0)
    assert rates_of(Counted(0.0, 100, 0), now) == (0.0, 0.5)


async def test_a_valkey_that_does_not_answer_is_reported(
    start: Start, autojump_clock: MockClock
) -> None:
    this = start(THIS)
    this.journal.warm.is_away = True
    await trio.sleep(BEAT_S / 2)
    this.journal.warm.is_away = False
    await trio.sleep(BEAT_S)
    assert [report.unreachable for report in this.rows.reports] == [("valkey",), ()]


async def test_the_last_hand_over_is_reported_by_its_age(
    start: Start, table: Table, autojump_clock: MockClock
) -> None:
    this = start(THIS)
    await trio.sleep(BEAT_S / 2)
    assert this.rows.notes[0][1].hand_over_age_ms is None
    this.journal.tiers.last_hand_over.confirmed()
    handed_over_ms = now_ms()
    await trio.sleep(BEAT_S)
    assert this.rows.notes[1][1].hand_over_age_ms == BEAT_S * 1000 / 2
    assert table.members[THIS].last_hand_over_ms == handed_over_ms


async def test_a_journal_that_does_not_answer_keeps_nobody_from_seeing_the_daemon(
    start: Start, autojump_clock: MockClock
) -> None:
    this = start(THIS)
    this.journal.books = Totals(accepted=5)
    await trio.sleep(BEAT_S / 2)
    this.journal.is_silent = True
    await trio.sleep(BEAT_S + JOURNAL_S)
    assert this.rows.reports == [MemberReport(backlog=5)] * 2


async def test_draining_and_the_end_are_written_at_once_and_nothing_after_them(
    start: Start, autojump_clock: MockClock
) -> None:
    this = start(THIS)
    await trio.sleep(BEAT_S / 2)
    this.heart.drain()
    await wait_all_tasks_blocked()
    assert [report.state for report in this.rows.reports] == ["running", "draining"]
    this.journal.books = Totals(accepted=3)
    await this.heart.close()
    await trio.sleep(10 * BEAT_S)
    assert [report.state for report in this.rows.reports] == ["running", "draining", "stopped"]
    assert this.rows.reports[-1].backlog == 3


async def test_while_the_store_is_away_nothing_is_written_and_nothing_fails(
    start: Start, table: Table, autojump_clock: MockClock
) -> None:
    table.is_away = True
    this = start(THIS)
    await trio.sleep(10.5 * BEAT_S)
    assert this.rows.notes == []
    table.is_away = False
    await trio.sleep(BEAT_S)
    [(_, note)] = this.rows.notes
    assert note.is_first
    assert table.members[THIS].started_ms == START_MS
    table.is_away = True
    await this.heart.close()
    assert len(this.rows.notes) == 1


async def test_daemons_that_stopped_long_ago_are_looked_for_once_an_hour(
    start: Start, table: Table, autojump_clock: MockClock
) -> None:
    start(THIS)
    await trio.sleep(3 * SWEEP_S - 1)
    assert table.swept == 3


async def test_daemons_of_an_idle_fleet_are_running_for_as_long_as_one_looks(
    start: Start, autojump_clock: MockClock
) -> None:
    this, other = start(THIS), start(OTHER)
    for _ in range(200):
        await trio.sleep(1.7)
        assert set((await this.states()).values()) == {"running"}
        assert set((await other.states()).values()) == {"running"}
    listed = {each.member.daemon: each.is_this for each in (await this.heart.list()).daemons}
    assert listed == {THIS: True, OTHER: False}


async def test_a_daemon_that_is_not_seen_for_a_minute_is_lost(
    start: Start, table: Table, autojump_clock: MockClock
) -> None:
    this, other = start(THIS), start(OTHER)
    await trio.sleep(SETTLE_S)
    other.kill()
    await trio.sleep(LOST_S - BEAT_S)
    assert await this.states() == {THIS: "running", OTHER: "running"}
    await trio.sleep(BEAT_S + 1)
    assert await this.states() == {THIS: "running", OTHER: "lost"}
    assert await this.heart.forget(OTHER)
    assert await this.states() == {THIS: "running"}


async def test_a_daemon_that_stopped_is_not_lost(start: Start, autojump_clock: MockClock) -> None:
    this, other = start(THIS), start(OTHER)
    await wait_all_tasks_blocked()
    await other.heart.close()
    await trio.sleep(10 * LOST_S)
    assert await this.states() == {THIS: "running", OTHER: "stopped"}


async def test_after_an_outage_of_the_store_living_daemons_are_not_lost(
    start: Start, table: Table, autojump_clock: MockClock
) -> None:
    """They write their rows again in their own time. One that does not is lost after all."""
    this, gone = start(THIS), start(GONE)
    await trio.sleep(BEAT_S / 2)
    # It writes half a pause after this one.
    start(OTHER)
    await trio.sleep(10 * BEAT_S)
    gone.kill()
    table.is_away = True
    await trio.sleep(10 * LOST_S + BEAT_S / 5)
    table.is_away = False
    await trio.sleep(2 * BEAT_S / 5)
    assert table.members[THIS].seen_ms > now_ms() - LOST_MS > table.members[OTHER].seen_ms
    assert set((await this.states()).values()) == {"running"}
    await trio.sleep(SETTLE_S)
    assert await this.states() == {THIS: "running", OTHER: "running", GONE: "lost"}


async def test_a_daemon_that_was_seen_within_a_minute_is_not_forgotten(
    start: Start, autojump_clock: MockClock
) -> None:
    this, _ = start(THIS), start(OTHER)
    await trio.sleep(LOST_S)
    assert not await this.heart.forget(OTHER)
    assert not await this.heart.forget(b"nobody..........")
