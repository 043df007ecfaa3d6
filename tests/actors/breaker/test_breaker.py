"""Breakers: the states as a table, then the actor: who waits, who is let through, who is woken."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.breaker.breaker import Breakers
from actors.breaker.state import (
    Admission,
    BreakerEvent,
    BreakerState,
    Forced,
    GivenUp,
    ProbeGranted,
    SendOutcome,
    SettingsChanged,
    TimerRang,
    free_probes,
    next_state,
)
from actors.config.queue import BreakerSettings
from actors.model.slices import ERROR_TEXT_MAX

HERE = "https://crm.example"


def settings(threshold: int = 3, probes: int = 1, enabled: bool = True) -> BreakerSettings:
    return BreakerSettings(
        enabled=enabled, threshold=threshold, reset_timeout=30, half_open_probes=probes
    )


def sent(state: BreakerState, ok: bool, error: str = "", probe: int = -1) -> SendOutcome:
    return SendOutcome(Admission(HERE, state.era, probe), ok, error)


def after(state: BreakerState, *events: BreakerEvent, now: float = 0.0, **options: Any) -> Any:
    for event in events:
        state = next_state(state, event, now, settings(**options))
    return state


CLOSED = BreakerState()
OPEN = after(CLOSED, *[sent(CLOSED, False, "down")] * 3)
HALF_OPEN = after(OPEN, TimerRang(), now=30)
PROBED = after(HALF_OPEN, ProbeGranted())

# The states.


def test_failures_in_a_row_open_it() -> None:
    twice = after(CLOSED, sent(CLOSED, False, "a"), sent(CLOSED, False, "b"))
    assert (twice.phase, twice.failures, twice.last_error) == ("closed", 2, "b")
    opened = after(twice, sent(twice, False, "c"), now=7)
    assert opened == BreakerState("open", era=1, failures=3, last_error="c", until=37)


def test_a_success_between_failures_begins_the_count_again() -> None:
    events = [sent(CLOSED, ok) for ok in (False, False, True, False, False)]
    assert after(CLOSED, *events).phase == "closed"


def test_a_success_of_a_closed_breaker_makes_no_new_state() -> None:
    assert after(CLOSED, sent(CLOSED, True)) is CLOSED


@pytest.mark.parametrize("now, phase", [(29.9, "open"), (30, "half_open"), (99, "half_open")])
def test_open_ends_after_the_reset_timeout(now: float, phase: str) -> None:
    assert after(OPEN, TimerRang(), now=now).phase == phase


def test_a_good_probe_closes_it_with_nothing_left_over() -> None:
    assert after(PROBED, sent(PROBED, True, probe=0)) == BreakerState("closed", era=3)


def test_a_bad_probe_opens_it_for_another_reset_timeout() -> None:
    again = after(PROBED, sent(PROBED, False, "still", probe=0), now=40)
    assert again == BreakerState("open", era=3, failures=4, last_error="still", until=70)


def test_every_probe_must_be_good() -> None:
    state = after(HALF_OPEN, *[ProbeGranted()] * 5, probes=3)
    assert (state.probing, free_probes(state, settings(probes=3))) == ({0, 1, 2}, 0)
    state = after(state, sent(state, True, probe=1), sent(state, True, probe=0), probes=3)
    assert (state.phase, state.succeeded, state.probing) == ("half_open", 2, {2})
    assert free_probes(state, settings(probes=3)) == 0
    assert after(state, sent(state, False, probe=2), probes=3).phase == "open"
    assert after(state, sent(state, True, probe=2), probes=3).phase == "closed"


def test_a_probe_that_is_reported_twice_counts_once() -> None:
    state = after(HALF_OPEN, ProbeGranted(), ProbeGranted(), probes=2)
    state = after(state, *[sent(state, True, probe=0)] * 2, probes=2)
    assert (state.phase, state.succeeded) == ("half_open", 1)


def test_a_probe_that_is_given_up_makes_room_for_another() -> None:
    state = after(PROBED, GivenUp(Admission(HERE, PROBED.era, 0)))
    assert free_probes(state, settings()) == 1
    state = after(state, ProbeGranted())
    assert state.probing == {1}
    # The one that was given up cannot speak for its successor.
    assert after(state, sent(state, True, probe=0)) is state
    assert after(state, GivenUp(Admission(HERE, state.era, 0))) is state


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("state", [OPEN, HALF_OPEN, PROBED, replace(CLOSED, era=3, failures=2)])
def test_an_outcome_of_another_era_changes_nothing(state: BreakerState, ok: bool) -> None:
    late = SendOutcome(Admission(HERE, 0), ok, "late")
    late_probe = SendOutcome(Admission(HERE, state.era - 1, 0), ok, "late")
    assert after(state, late, late_probe) is state


def test_an_outcome_without_a_probe_does_not_close_a_half_open_breaker() -> None:
    assert after(PROBED, sent(PROBED, True)) is PROBED


def test_forced_open_lasts_until_it_is_forced_closed() -> None:
    forced = after(CLOSED, Forced("open"))
    assert after(forced, TimerRang(), now=1e12) is forced
    assert after(OPEN, Forced("open"), TimerRang(), now=1e12).phase == "open"
    assert after(forced, Forced("closed")) == BreakerState("closed", era=2)


def test_a_disabled_breaker_is_always_closed() -> None:
    events = [sent(CLOSED, False)] * 10
    assert after(CLOSED, *events, Forced("open"), enabled=False) is CLOSED
    assert after(OPEN, SettingsChanged(), enabled=False).phase == "closed"


def test_fewer_probes_than_were_good_already_close_it() -> None:
    state = after(HALF_OPEN, ProbeGranted(), probes=3)
    state = after(state, sent(state, True, probe=0), probes=3)
    assert after(state, SettingsChanged(), probes=2).phase == "half_open"
    assert after(state, SettingsChanged(), probes=1).phase == "closed"


def test_an_error_is_remembered_up_to_a_bound() -> None:
    assert len(after(CLOSED, sent(CLOSED, False, "x" * 10000)).last_error) == ERROR_TEXT_MAX
    probed = after(PROBED, sent(PROBED, False, "x" * 10000, probe=0))
    assert len(probed.last_error) == ERROR_TEXT_MAX


EVENTS = st.one_of(
    st.builds(
        SendOutcome,
        st.builds(Admission, st.just(HERE), st.integers(0, 8), st.integers(-1, 4)),
        st.booleans(),
    ),
    st.builds(ProbeGranted),
    st.builds(GivenUp, st.builds(Admission, st.just(HERE), st.integers(0, 8), st.integers(-1, 4))),
    st.builds(TimerRang),
    st.builds(Forced, st.sampled_from(["open", "closed"])),
    st.builds(SettingsChanged),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 40)), max_size=40), st.integers(1, 3))
def test_no_events_leave_a_breaker_stuck(events: list[Any], probes: int) -> None:
    """Whatever happened: time and good probes close what no operator holds open."""
    rules = settings(threshold=2, probes=probes)
    state, now = CLOSED, 0.0
    for event, passed in events:
        now += passed
        before, state = state, next_state(state, event, now, rules)
        assert (state.era == before.era) == (state.phase == before.phase)
        assert state.era >= before.era
        assert len(state.probing) + state.succeeded <= probes
        assert state.phase == "half_open" or not (state.probing or state.succeeded)
        assert (state.phase == "open") == (state.until > 0)
    if state.phase == "open" and state.until < math.inf:
        state = next_state(state, TimerRang(), state.until, rules)
    if state.phase == "half_open":
        for probe in state.probing:
            state = next_state(state, GivenUp(Admission(HERE, state.era, probe)), now, rules)
        while free_probes(state, rules):
            number = state.granted
            state = next_state(state, ProbeGranted(), now, rules)
            state = next_state(state, sent(state, True, probe=number), now, rules)
    assert state.phase == "closed" or state.until == math.inf


# The actor.


class Group:
    """Workers that want to send to the same place."""

    def __init__(self, breakers: Breakers, nursery: trio.Nursery) -> None:
        self.breakers = breakers
        self._nursery = nursery
        self.admitted: list[Admission] = []

    async def want(self, workers: int = 1) -> None:
        for _ in range(workers):
            self._nursery.start_soon(self._worker)
        await wait_all_tasks_blocked()

    async def _worker(self) -> None:
        self.admitted.append(await self.breakers.admit(HERE))

    async def report(self, admission: Admission, ok: bool, error: str = "") -> None:
        self.breakers.report(SendOutcome(admission, ok, error))
        await wait_all_tasks_blocked()

    async def fail(self, times: int = 3) -> None:
        """Sends that were admitted now, and failed."""
        admission = await self.breakers.admit(HERE)
        for _ in range(times):
            await self.report(admission, False, "refused")

    def figure(self, name: str) -> Any:
        return getattr(self.breakers.figures()[HERE], name)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Group]:
    breakers = Breakers()
    breakers.name(HERE, settings(**options))
    async with trio.open_nursery() as nursery:
        await nursery.start(breakers.run)
        yield Group(breakers, nursery)
        nursery.cancel_scope.cancel()


async def pass_time(seconds: float) -> None:
    await trio.sleep(seconds)
    await wait_all_tasks_blocked()


async def test_a_closed_breaker_admits_at_once() -> None:
    async with running() as group:
        await group.want(10)
        assert [admission.is_probe for admission in group.admitted] == [False] * 10


async def test_an_open_breaker_lets_one_probe_through_and_all_when_that_was_good(
    autojump_clock: MockClock,
) -> None:
    async with running() as group:
        await group.fail()
        await group.want(5)
        await pass_time(29.9)
        assert (group.admitted, group.figure("waiting")) == ([], 5)
        await pass_time(0.2)
        (probe,) = group.admitted
        assert probe.is_probe
        await pass_time(1000)
        assert len(group.admitted) == 1
        await group.report(probe, True)
        assert len(group.admitted) == 5
        assert not any(admission.is_probe for admission in group.admitted[1:])
        assert group.breakers.state(HERE).phase == "closed"


async def test_half_open_admits_as_many_probes_as_are_allowed(autojump_clock: MockClock) -> None:
    async with running(probes=3) as group:
        await group.fail()
        await group.want(2)
        await pass_time(31)
        assert len(group.admitted) == 2
        await group.want(5)
        assert len(group.admitted) == 3
        for probe in group.admitted[:3]:
            await group.report(probe, True)
        assert len(group.admitted) == 7


async def test_one_worker_alone_does_all_the_probes(autojump_clock: MockClock) -> None:
    async with running(probes=3) as group:
        await group.fail()
        for _ in range(3):
            admission = await group.breakers.admit(HERE)
            assert admission.is_probe
            await group.report(admission, True)
        assert group.breakers.state(HERE).phase == "closed"


async def test_a_bad_probe_keeps_the_group_waiting_for_another_timeout(
    autojump_clock: MockClock,
) -> None:
    async with running() as group:
        await group.fail()
        await group.want(4)
        await pass_time(30.1)
        await group.report(group.admitted[0], False, "still down")
        await pass_time(29.8)
        assert len(group.admitted) == 1
        await pass_time(0.3)
        assert len(group.admitted) == 2
        assert group.admitted[1].is_probe


async def test_a_late_failure_is_not_the_probes(autojump_clock: MockClock) -> None:
    async with running() as group:
        slow = await group.breakers.admit(HERE)
        await group.fail()
        await group.want(2)
        await pass_time(31)
        await group.report(slow, False, "timed out at last")
        assert group.breakers.state(HERE).phase == "half_open"
        await group.report(group.admitted[0], True)
        for _ in range(5):
            await group.report(slow, False, "timed out at last")
        state = group.breakers.state(HERE)
        assert (state.phase, state.failures) == ("closed", 0)
        assert group.figure("stale_total") == 6


async def test_a_breaker_that_closed_opens_again(autojump_clock: MockClock) -> None:
    async with running() as group:
        for times in (1, 2, 3):
            await group.fail()
            assert group.figure("opened_total") == times
            probe = await group.breakers.admit(HERE)
            await group.report(probe, True)
            assert group.breakers.state(HERE).phase == "closed"
        assert group.figure("stale_total") == 0


async def test_a_late_success_does_not_close_it(autojump_clock: MockClock) -> None:
    async with running() as group:
        slow = await group.breakers.admit(HERE)
        await group.fail()
        await group.report(slow, True)
        assert group.breakers.state(HERE).phase == "open"


async def test_a_probe_whose_worker_was_cancelled_is_handed_to_the_next(
    autojump_clock: MockClock,
) -> None:
    async with running() as group:
        await group.fail()
        with trio.move_on_after(60) as sending:
            probe = await group.breakers.admit(HERE)
            try:
                await trio.sleep_forever()
            finally:
                group.breakers.give_up(probe)
        assert sending.cancelled_caught
        await group.want(2)
        assert [admission.is_probe for admission in group.admitted] == [True]
        group.breakers.give_up(probe)
        await wait_all_tasks_blocked()
        assert len(group.admitted) == 1
        group.breakers.give_up(group.admitted[0])
        await wait_all_tasks_blocked()
        assert len(group.admitted) == 2


async def test_giving_up_after_the_report_changes_nothing(autojump_clock: MockClock) -> None:
    async with running(probes=2) as group:
        await group.fail()
        await group.want(3)
        await pass_time(31)
        await group.report(group.admitted[0], True)
        group.breakers.give_up(group.admitted[0])
        await wait_all_tasks_blocked()
        assert len(group.admitted) == 2


async def test_a_waiter_that_is_cancelled_takes_no_probe(autojump_clock: MockClock) -> None:
    async with running() as group:
        await group.fail()
        with trio.move_on_after(29):
            await group.breakers.admit(HERE)
        await group.want()
        await pass_time(2)
        assert [admission.is_probe for admission in group.admitted] == [True]


async def test_waiting_wakes_nobody_until_there_is_something_to_do(
    autojump_clock: MockClock,
) -> None:
    async with running() as group:
        await group.fail()
        await group.want(50)
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(29)
        trio.lowlevel.remove_instrument(turns)
        assert turns.taken <= 1  # this test's own
        await pass_time(5)
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(1000)
        trio.lowlevel.remove_instrument(turns)
        assert turns.taken <= 1


class Turns(trio.abc.Instrument):
    def __init__(self) -> None:
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += 1


async def test_half_open_wakes_no_more_than_it_admits(autojump_clock: MockClock) -> None:
    async with running(probes=2) as group:
        await group.fail()
        await group.want(100)
        turns = Turns()
        trio.lowlevel.add_instrument(turns)
        await trio.sleep(31)
        trio.lowlevel.remove_instrument(turns)
        assert len(group.admitted) == 2
        assert turns.taken < 15


async def test_breakers_do_not_mix(autojump_clock: MockClock) -> None:
    async with running() as group:
        group.breakers.name("other", settings(threshold=1))
        await group.fail()
        assert group.breakers.state("other").phase == "closed"
        await pass_time(10)
        admission = await group.breakers.admit("other")
        await group.report(admission, False)
        await pass_time(20)
        assert group.breakers.state(HERE).phase == "half_open"
        assert group.breakers.state("other").phase == "open"
        await pass_time(10)
        assert group.breakers.state("other").phase == "half_open"


async def test_the_first_queues_settings_count_until_they_are_changed() -> None:
    async with running(threshold=2) as group:
        group.breakers.name(HERE, settings(threshold=100))
        await group.fail(2)
        assert group.breakers.state(HERE).phase == "open"
        await group.want(3)
        group.breakers.change(HERE, settings(enabled=False))
        await wait_all_tasks_blocked()
        assert len(group.admitted) == 3


async def test_more_probes_after_a_reload_are_admitted_at_once(autojump_clock: MockClock) -> None:
    async with running(probes=1) as group:
        await group.fail()
        await group.want(5)
        await pass_time(31)
        group.breakers.change(HERE, settings(probes=3))
        await wait_all_tasks_blocked()
        assert len(group.admitted) == 3


async def test_an_operator_opens_and_closes(autojump_clock: MockClock) -> None:
    async with running() as group:
        assert group.breakers.force(HERE, "open").phase == "open"
        await group.want(2)
        await pass_time(10**6)
        assert group.admitted == []
        group.breakers.force(HERE, "closed")
        await wait_all_tasks_blocked()
        assert len(group.admitted) == 2


async def test_changes_are_logged_once_and_counted(autojump_clock: MockClock) -> None:
    async with running() as group:
        with capture_logs() as logs:
            await group.fail(10)
            await group.want(3)
            await pass_time(31)
            await group.report(group.admitted[0], True)
            for admission in group.admitted:
                await group.report(admission, True)
        assert logs == [
            {
                "event": event,
                "log_level": level,
                "destination": HERE,
                "failures": 3,
                "error": "refused",
                "forced": False,
            }
            for event, level in [
                ("breaker.opened", "warning"),
                ("breaker.half_open", "info"),
                ("breaker.closed", "info"),
            ]
        ]
        figures = group.breakers.figures()[HERE]
        assert figures.opened_total == figures.half_opened_total == figures.closed_total == 1
        assert (figures.phase, figures.failures, figures.waiting) == ("closed", 0, 0)
