"""One line for an outage, and one for its end, whoever notices it and however often."""

import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock

from actors.ports.presence import QUIET_S, Presence
from actors.ports.tiers import StoreUnavailable

GONE = StoreUnavailable("gone")


@pytest.fixture
def presence() -> Presence:
    return Presence()


async def test_many_steps_that_fail_again_and_again_are_one_outage(
    presence: Presence, mock_clock: MockClock
) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            for step in ("tick", "offer", "settle"):
                presence.lost(step, GONE)
            mock_clock.jump(5)
        assert presence.is_away
        for step in ("tick", "offer", "settle"):
            assert presence.is_away
            presence.found(step)
    assert not presence.is_away
    assert [line["event"] for line in logs] == ["cold.away", "cold.back"]
    assert (logs[0]["step"], logs[1]["seconds"]) == ("tick", 15)
    assert presence.away_total == 1


async def test_a_store_that_is_only_read_stays_away_as_long_as_something_is_refused(
    presence: Presence, mock_clock: MockClock
) -> None:
    with capture_logs() as logs:
        for _ in range(10):
            presence.lost("hand over", GONE)
            mock_clock.jump(QUIET_S / 2)
            presence.found("tick")
            assert presence.is_away
        mock_clock.jump(QUIET_S / 2)
        # Nobody needs it any more: others speak for it.
        presence.found("tick")
    assert not presence.is_away
    assert [line["event"] for line in logs] == ["cold.away", "cold.back"]


async def test_each_outage_is_counted(presence: Presence) -> None:
    for _ in range(2):
        presence.found("tick")
        presence.lost("tick", GONE)
        presence.found("tick")
    assert presence.away_total == 2
