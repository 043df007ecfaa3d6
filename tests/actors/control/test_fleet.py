"""`fleet.ls` and `fleet.rm`: what they answer, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.control.fleet import RemoveMember, listed, removed
from actors.fleet.members import LOST_MS, Heartbeat
from actors.ports.fleet import MemberNote, MemberReport
from forebay.errors import Refused
from tests.actors.fleet.member_table import START_MS, FakeJournal, Table, as_port
from tests.rig.rig import running

THIS = bytes.fromhex("0198c0de0a0070008000000000000001")
OTHER = bytes.fromhex("0198c0de0a0070008000000000000002")


async def daemons(fleet: Heartbeat) -> dict[str, Any]:
    return (await listed(fleet)).model_dump()


async def refusal(fleet: Heartbeat, given: str) -> tuple[str, str]:
    with pytest.raises(Refused) as refused:
        await removed(fleet, RemoveMember.read({"daemon": given}).daemon)
    return refused.value.code, refused.value.text


@pytest.fixture
async def fleet(nursery: trio.Nursery) -> Heartbeat:
    """This daemon runs. The other one was there for a moment, with seven items."""
    table, journal = Table(), FakeJournal()
    heartbeat = Heartbeat(as_port(table.of(THIS)), THIS, journal.tiers)
    nursery.start_soon(journal.run)
    nursery.start_soon(heartbeat.run)
    report = MemberReport("running", 7, 1.5, 2.5, ("valkey",))
    await table.of(OTHER).note(MemberNote(report, up_ms=1000, hand_over_age_ms=200))
    return heartbeat


async def test_a_daemon_alone_has_no_fleet(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        for op, fields in (("fleet.ls", {}), ("fleet.rm", {"daemon": "0198c0de"})):
            with pytest.raises(Refused, match="this daemon is not part of a fleet") as refused:
                await rig.control(op, **fields)
            assert refused.value.code == "BAD_REQUEST"


async def test_every_daemon_is_listed(fleet: Heartbeat, autojump_clock: MockClock) -> None:
    await trio.sleep(1)
    answer = await daemons(fleet)
    this, other = answer["daemons"]
    assert answer["now_ms"] == START_MS + 1000
    assert (this["daemon"], this["is_this"], this["state"]) == (THIS.hex(), True, "running")
    assert this["last_hand_over_ms"] is None
    assert other == {
        "daemon": OTHER.hex(),
        "is_this": False,
        "state": "running",
        "host": "host",
        "version": "1.0",
        "started_ms": START_MS - 1000,
        "seen_ms": START_MS,
        "accepted_per_s": 1.5,
        "delivered_per_s": 2.5,
        "backlog": 7,
        "unreachable": ["valkey"],
        "last_hand_over_ms": START_MS - 200,
    }


async def test_a_lost_daemon_has_its_backlog_and_no_rates(
    fleet: Heartbeat, autojump_clock: MockClock
) -> None:
    await trio.sleep(LOST_MS / 1000 + 1)
    _, other = (await daemons(fleet))["daemons"]
    assert (other["state"], other["backlog"]) == ("lost", 7)
    assert (other["accepted_per_s"], other["delivered_per_s"]) == (0, 0)
    assert other["unreachable"] == []
    assert other["last_hand_over_ms"] == START_MS - 200


async def test_a_lost_daemon_is_forgotten_by_the_first_digits_of_its_id(
    fleet: Heartbeat, autojump_clock: MockClock
) -> None:
    await trio.sleep(LOST_MS / 1000 + 1)
    code, text = await refusal(fleet, "0198C0DE")
    assert (code, text) == (
        "BAD_REQUEST",
        "0198C0DE matches 2 daemons: give more digits of the id",
    )
    gone = (await removed(fleet, OTHER.hex().upper())).model_dump()
    assert gone == {"daemon": OTHER.hex(), "host": "host", "backlog": 7}
    assert (await refusal(fleet, OTHER.hex()))[0] == "NOT_FOUND"
    [this] = (await daemons(fleet))["daemons"]
    assert this["is_this"]


@pytest.mark.parametrize(
    "given, code, text",
    [
        (OTHER.hex(), "CONFLICT", "was seen less than 60 s ago: only daemons that are gone can"),
        (THIS.hex(), "CONFLICT", "is the one that answers"),
        ("ffffffff", "NOT_FOUND", "the fleet has no daemon ffffffff"),
        ("019", "BAD_REQUEST", "daemon must have at least 4 characters"),
    ],
)
async def test_a_daemon_that_is_there_is_not_forgotten(
    fleet: Heartbeat, autojump_clock: MockClock, given: str, code: str, text: str
) -> None:
    await trio.sleep(LOST_MS / 1000)
    refused = await refusal(fleet, given)
    assert refused[0] == code
    assert text in refused[1]
    assert len((await daemons(fleet))["daemons"]) == 2
