"""`fleet.list` and `fleet.forget`: what they answer, and what they refuse."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from actors.control.fields import Fields
from actors.control.fleet import FleetControl
from actors.fleet.members import LOST_MS, Heartbeat
from actors.ports.fleet import MemberNote, MemberReport
from forebay.errors import Refused
from tests.actors.fleet.member_table import START_MS, FakeJournal, Table, as_port

THIS = bytes.fromhex("0198c0de0a0070008000000000000001")
OTHER = bytes.fromhex("0198c0de0a0070008000000000000002")


async def perform(control: FleetControl, op: str, **fields: Any) -> dict[str, Any]:
    return await control.operations[op](Fields(fields))


async def refusal(control: FleetControl, op: str, **fields: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as refused:
        await perform(control, op, **fields)
    return refused.value.code, refused.value.text


@pytest.fixture
async def control(nursery: trio.Nursery) -> FleetControl:
    """This daemon runs. The other one was there for a moment, with seven items."""
    table, journal = Table(), FakeJournal()
    heartbeat = Heartbeat(as_port(table.of(THIS)), THIS, journal.tiers)
    nursery.start_soon(journal.run)
    nursery.start_soon(heartbeat.run)
    report = MemberReport("running", 7, 1.5, 2.5, ("valkey",))
    await table.of(OTHER).note(MemberNote(report, up_ms=1000, hand_over_age_ms=200))
    return FleetControl(heartbeat)


async def test_a_daemon_alone_has_no_fleet() -> None:
    code, text = await refusal(FleetControl(None), "fleet.list")
    assert code == "BAD_REQUEST"
    assert text == "this daemon is not part of a fleet: it shares no PostgreSQL (cold.type)"
    assert (await refusal(FleetControl(None), "fleet.forget", daemon="0198c0de"))[0] == code


async def test_every_daemon_is_listed(control: FleetControl, autojump_clock: MockClock) -> None:
    await trio.sleep(1)
    answer = await perform(control, "fleet.list")
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
    control: FleetControl, autojump_clock: MockClock
) -> None:
    await trio.sleep(LOST_MS / 1000 + 1)
    _, other = (await perform(control, "fleet.list"))["daemons"]
    assert (other["state"], other["backlog"]) == ("lost", 7)
    assert (other["accepted_per_s"], other["delivered_per_s"]) == (0, 0)
    assert other["unreachable"] == []
    assert other["last_hand_over_ms"] == START_MS - 200


async def test_a_lost_daemon_is_forgotten_by_the_first_digits_of_its_id(
    control: FleetControl, autojump_clock: MockClock
) -> None:
    await trio.sleep(LOST_MS / 1000 + 1)
    code, text = await refusal(control, "fleet.forget", daemon="0198C0DE")
    assert (code, text) == (
        "BAD_REQUEST",
        "0198C0DE matches 2 daemons: give more digits of the id",
    )
    gone = await perform(control, "fleet.forget", daemon=OTHER.hex().upper())
    assert gone == {"daemon": OTHER.hex(), "host": "host", "backlog": 7}
    assert (await refusal(control, "fleet.forget", daemon=OTHER.hex()))[0] == "NOT_FOUND"
    [this] = (await perform(control, "fleet.list"))["daemons"]
    assert this["is_this"]


@pytest.mark.parametrize(
    "given, code, text",
    [
        (OTHER.hex(), "CONFLICT", "was seen less than 60 s ago: only daemons that are gone can"),
        (THIS.hex(), "CONFLICT", "is the one that answers"),
        ("ffffffff", "NOT_FOUND", "the fleet has no daemon ffffffff"),
        ("019", "NOT_FOUND", "the fleet has no daemon 019"),
    ],
)
async def test_a_daemon_that_is_there_is_not_forgotten(
    control: FleetControl, autojump_clock: MockClock, given: str, code: str, text: str
) -> None:
    await trio.sleep(LOST_MS / 1000)
    refused = await refusal(control, "fleet.forget", daemon=given)
    assert refused[0] == code
    assert text in refused[1]
    assert len((await perform(control, "fleet.list"))["daemons"]) == 2
