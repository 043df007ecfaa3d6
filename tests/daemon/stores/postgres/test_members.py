"""The rows of a fleet's daemons in PostgreSQL: each daemon writes its own, any daemon reads all."""

from collections.abc import AsyncIterator

import pytest

from actors.ports.fleet import Member, MemberNote, MemberReport, Members, SharedCounts
from actors.ports.tiers import RowOutcome
from daemon.stores.bridge import Bridge
from daemon.stores.postgres.members import read_report
from daemon.stores.postgres.store import PostgresCold
from tests.conformance.cold_stores import LEASE_S, PLENTY, START_MS, new_row
from tests.conformance.postgres_stores import PostgresStores

THIS, OTHER = b"this daemon.....", b"the other daemon"
LOCK = b"L" * 16
DAY_MS = 86_400_000


class Fleet(PostgresStores):
    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        self.cold = self.make(THIS)
        self.other_cold = self.make(OTHER)
        self.this: Members = self.cold.members
        self.other: Members = self.other_cold.members

    async def seen(self) -> dict[bytes, Member]:
        return {member.daemon: member for member in (await self.other.all()).members}


@pytest.fixture
async def fleet(bridge: Bridge) -> AsyncIterator[Fleet]:
    fleet = Fleet(bridge)
    await fleet.cold.open()
    await fleet.other_cold.open()
    yield fleet
    await fleet.other_cold.close()
    await fleet.drop()


async def test_an_empty_list_has_the_servers_time(fleet: Fleet) -> None:
    assert await fleet.this.all() == (START_MS, [])


async def test_any_daemon_reads_what_each_has_reported_on_the_servers_clock(fleet: Fleet) -> None:
    report = MemberReport("draining", 12, 1.5, 2.5, ("valkey",))
    await fleet.this.note(MemberNote(report, up_ms=700, hand_over_age_ms=50))
    fleet.advance(1000)
    await fleet.other.note(MemberNote(MemberReport(), up_ms=0))
    now_ms, members = await fleet.other.all()
    assert now_ms == START_MS + 1000
    assert [member.daemon for member in members] == sorted((THIS, OTHER))
    this = (await fleet.seen())[THIS]
    assert this.report == report
    assert this.host
    assert this.version
    times = (this.started_ms, this.seen_ms, this.last_hand_over_ms)
    assert times == (START_MS - 700, START_MS, START_MS - 50)
    assert (await fleet.seen())[OTHER].last_hand_over_ms == 0


async def test_later_notes_of_a_process_keep_the_time_of_its_start(fleet: Fleet) -> None:
    await fleet.this.note(MemberNote(MemberReport(), up_ms=0))
    fleet.advance(5000)
    # The two clocks do not go equally fast.
    await fleet.this.note(MemberNote(MemberReport(backlog=3), up_ms=4990, is_first=False))
    this = (await fleet.seen())[THIS]
    assert (this.started_ms, this.seen_ms) == (START_MS, START_MS + 5000)
    assert this.report.backlog == 3


async def test_a_new_process_has_a_new_start_and_keeps_the_last_hand_over(fleet: Fleet) -> None:
    await fleet.this.note(MemberNote(MemberReport(), up_ms=0, hand_over_age_ms=100))
    fleet.advance(60_000)
    await fleet.this.note(MemberNote(MemberReport(), up_ms=0))
    this = (await fleet.seen())[THIS]
    assert (this.started_ms, this.last_hand_over_ms) == (START_MS + 60_000, START_MS - 100)


async def test_a_daemon_is_forgotten_only_if_it_was_not_seen_for_so_long(fleet: Fleet) -> None:
    await fleet.this.note(MemberNote(MemberReport(), up_ms=0))
    await fleet.other.note(MemberNote(MemberReport(), up_ms=0))
    fleet.advance(60_000)
    assert not await fleet.other.forget(THIS, unseen_ms=60_000)
    fleet.advance(1)
    await fleet.other.note(MemberNote(MemberReport(), up_ms=0))
    assert not await fleet.other.forget(OTHER, unseen_ms=60_000)
    assert await fleet.other.forget(THIS, unseen_ms=60_000)
    assert not await fleet.other.forget(THIS, unseen_ms=60_000)
    assert list(await fleet.seen()) == [OTHER]


@pytest.mark.parametrize(
    "report, is_swept",
    [
        (MemberReport("stopped"), True),
        (MemberReport("stopped", backlog=1), False),
        (MemberReport("running"), False),
        (MemberReport("draining"), False),
    ],
)
async def test_only_daemons_that_stopped_with_nothing_left_are_swept(
    fleet: Fleet, report: MemberReport, is_swept: bool
) -> None:
    await fleet.this.note(MemberNote(report, up_ms=0))
    fleet.advance(DAY_MS)
    assert await fleet.other.sweep(DAY_MS) == 0
    fleet.advance(1)
    assert await fleet.other.sweep(DAY_MS) == is_swept
    assert (THIS in await fleet.seen()) is not is_swept


async def test_what_a_daemon_does_in_the_store_counts_for_it_alone(fleet: Fleet) -> None:
    assert await fleet.this.counts() == SharedCounts(0, 0)
    row = new_row(5)
    await fleet.cold.store([row])
    await fleet.cold.confirm([row.row])
    await deliver(fleet.other_cold)
    assert await fleet.other.counts() == SharedCounts(0, 5)
    assert await fleet.this.counts() == SharedCounts(0, 0)


async def deliver(cold: PostgresCold) -> None:
    rows = await cold.acquire("q", LOCK, PLENTY, PLENTY, LEASE_S)
    assert all(await cold.settle([RowOutcome(row.row, LOCK, row.bits) for row in rows]))


def test_reports_of_other_versions_can_be_read() -> None:
    assert read_report("{}") == MemberReport()
    newer = '{"state": "napping", "backlog": 2, "mood": "good", "unreachable": ["valkey"]}'
    assert read_report(newer) == MemberReport("running", 2, unreachable=("valkey",))
