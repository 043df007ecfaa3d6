"""The steady clock starts where the wall clock is, and nothing but time moves it."""

import importlib.util
import time
from types import ModuleType

import pytest

from actors.model import clock

HOUR_NS = 3_600_000_000_000
START_NS = 1_750_000_000_123_456_789


class Host:
    """The clocks of a host that has been up for a day, and a process that starts on it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall_ns = START_NS
        self.monotonic_ns = 24 * HOUR_NS
        patch.setattr(time, "time_ns", lambda: self.wall_ns)
        patch.setattr(time, "monotonic_ns", lambda: self.monotonic_ns)
        self.clock = start_clock()

    def passes(self, ns: int) -> None:
        self.wall_ns += ns
        self.monotonic_ns += ns


def start_clock() -> ModuleType:
    """The module as another process has it; this one's stays as it is, for all that use it."""
    assert clock.__spec__ is not None
    module = importlib.util.module_from_spec(clock.__spec__)
    assert clock.__spec__.loader is not None
    clock.__spec__.loader.exec_module(module)
    return module


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_both_clocks_agree_until_the_wall_clock_is_set(host: Host) -> None:
    assert host.clock.steady_ms() == host.clock.wall_ms() == START_NS // 1_000_000
    host.passes(1_500_000_000)
    assert host.clock.steady_ms() == host.clock.wall_ms() == START_NS // 1_000_000 + 1500


@pytest.mark.parametrize("step_ns", [HOUR_NS, -HOUR_NS])
def test_steps_of_the_wall_clock_do_not_move_the_steady_one(host: Host, step_ns: int) -> None:
    before_ms = host.clock.steady_ms()
    host.wall_ns += step_ns
    assert host.clock.steady_ms() == before_ms
    assert host.clock.wall_ms() == before_ms + step_ns // 1_000_000
    host.passes(7_000_000)
    assert host.clock.steady_ms() == before_ms + 7


@pytest.mark.parametrize(
    "due_ms,failed_ms,expected_ms",
    [
        (9_000, 4_000, 9_000),
        (9_000, 6_000, 9_000),
        # It failed a day ahead, and was to wait for 5 s.
        (86_405_000, 86_400_000, 10_000),
        # It was put off anew already, or brought forward by an operator.
        (10_000, 86_400_000, 10_000),
    ],
)
def test_a_retry_that_failed_in_the_future_waits_for_its_pause(
    due_ms: int, failed_ms: int, expected_ms: int
) -> None:
    assert clock.retry_due_ms(due_ms, failed_ms, now_ms=5_000) == expected_ms


def test_leases_are_steady_unless_somebody_moves_the_time() -> None:
    def moved_ms() -> int:
        return 1

    def other_ms() -> int:
        return 2

    assert clock.lease_clock(clock.wall_ms, None) is clock.steady_ms
    assert clock.lease_clock(moved_ms, None) is moved_ms
    assert clock.lease_clock(clock.wall_ms, other_ms) is other_ms
    assert clock.lease_clock(moved_ms, other_ms) is other_ms
