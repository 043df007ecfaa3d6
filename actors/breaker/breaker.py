"""Breakers: one per destination, so that a destination that is down is left alone until it is up.

This actor owns the state of every breaker. Outcomes of sends come in through `report`; it gives out
frozen states (`state`), counters (`figures`) and admissions: a task that wants to send calls
`admit` first. A closed breaker admits at once. An open one makes the task wait: nothing is
attempted, and no attempt is spent. A half-open one admits `half_open_probes` trials and makes all
others wait until every trial has succeeded.

`report` is a plain call that applies `next_state` (actors/breaker/state.py) at once, not a message.
A bounded inbox would have to drop outcomes or make workers wait; a probe's outcome must never be
dropped; and between the failure that opens a breaker and the turn of an inbox's reader every other
worker would get through. Between two awaits trio runs one task, so only this file changes the
state. `run` keeps the single timer, for the open breaker that is due next.

If daemons share their knowledge (actors/fleet/breakers.py), an open breaker waits for the fleet
instead of its timer, so that all daemons together make `half_open_probes` trials. While the fleet
is unreachable, each daemon decides alone.

Nothing is durable: a daemon starts with closed breakers and finds out. On drain and on cancel
waiters are cancelled and have taken nothing. A task that was admitted and does not report must call
`give_up`, or a probe's place stays taken; after a report `give_up` does nothing, so it may be
called in a `finally`. A destination that no queue names any more is kept until the process ends.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import structlog
import trio

from actors.breaker.state import (
    Admission,
    BreakerEvent,
    BreakerState,
    FleetSaid,
    Forced,
    GivenUp,
    Phase,
    ProbeGranted,
    SendOutcome,
    SettingsChanged,
    TimerRang,
    free_probes,
    has_timer,
    next_state,
)
from actors.config.queue import BreakerSettings
from actors.model.clock import wall_ms
from actors.observers.events import BreakerChanged

__all__ = [
    "Admission",
    "BreakerFigures",
    "BreakerState",
    "Breakers",
    "FleetSaid",
    "SendOutcome",
]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BreakerFigures:
    phase: Phase
    failures: int
    waiting: int
    """Tasks that wait to send."""
    opened_total: int
    half_opened_total: int
    closed_total: int
    stale_total: int
    """Outcomes that came too late to count."""
    rejected_total: int = 0
    """How many times a task that wanted to send had to wait."""


class _Breaker:
    """The breaker of one destination: its state, its waiting tasks and its counts."""

    __slots__ = ("admission", "counts", "lot", "rejected", "settings", "stale", "state")

    def __init__(self, destination: str, settings: BreakerSettings) -> None:
        self.settings = settings
        self.state = BreakerState()
        self.admission = Admission(destination, 0)
        self.lot = trio.lowlevel.ParkingLot()
        self.counts: dict[Phase, int] = {"open": 0, "half_open": 0, "closed": 0}
        self.stale = 0
        self.rejected = 0


class Breakers:
    def __init__(self, changed: Callable[[BreakerChanged], None] = lambda _: None) -> None:
        """`changed` is called on every change of phase."""
        self._changed = changed
        self._breakers: dict[str, _Breaker] = {}
        self._replan = trio.Event()
        self.is_led = False
        """The fleet decides when an open breaker may be tried (actors/fleet/breakers.py)."""
        self.concluded: Callable[[SendOutcome, BreakerState], None] = lambda *_: None
        """Called with outcomes that the fleet must know: openings of a breaker, and trials."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            self._replan = trio.Event()
            with trio.move_on_at(self._ring()):
                await self._replan.wait()

    def name(self, destination: str, settings: BreakerSettings) -> None:
        """Creates the breaker of a queue's destination; the settings of the first queue apply."""
        if destination not in self._breakers:
            self._breakers[destination] = _Breaker(destination, settings)

    def change(self, destination: str, settings: BreakerSettings) -> None:
        """Changes the settings of a destination; its state is kept where possible."""
        breaker = self._breakers[destination]
        breaker.settings = settings
        self._apply(destination, breaker, SettingsChanged())
        if breaker.state.phase == "half_open":
            breaker.lot.unpark(count=free_probes(breaker.state, settings))

    def state(self, destination: str) -> BreakerState:
        return self._breakers[destination].state

    def settings(self, destination: str) -> BreakerSettings:
        return self._breakers[destination].settings

    def figures(self) -> Mapping[str, BreakerFigures]:
        """By destination."""
        return {
            destination: BreakerFigures(
                phase=breaker.state.phase,
                failures=breaker.state.failures,
                waiting=len(breaker.lot),
                opened_total=breaker.counts["open"],
                half_opened_total=breaker.counts["half_open"],
                closed_total=breaker.counts["closed"],
                stale_total=breaker.stale,
                rejected_total=breaker.rejected,
            )
            for destination, breaker in self._breakers.items()
        }

    async def admit(self, destination: str) -> Admission:
        """Waits for an admission. No checkpoint if it is admitted at once: the send is one."""
        while (admission := self.admit_nowait(destination)) is None:
            await self._breakers[destination].lot.park()
        return admission

    def admit_nowait(self, destination: str) -> Admission | None:
        """None: the task would have to wait."""
        breaker = self._breakers[destination]
        state = breaker.state
        if state.phase == "closed":
            return breaker.admission
        if free_probes(state, breaker.settings) == 0:
            breaker.rejected += 1
            return None
        self._apply(destination, breaker, ProbeGranted())
        return Admission(destination, state.era, probe=state.granted)

    def report(self, outcome: SendOutcome) -> None:
        destination = outcome.admission.destination
        breaker = self._breakers[destination]
        before = breaker.state
        if outcome.admission.era != before.era:
            breaker.stale += 1
        elif outcome.ok and before.phase == "closed" and not before.failures:
            # The common case: nothing changes.
            return
        self._apply(destination, breaker, outcome)
        has_opened = before.phase == "closed" and breaker.state.phase == "open"
        was_trial = before.phase == "half_open" and breaker.state is not before
        if has_opened or was_trial:
            self.concluded(outcome, breaker.state)

    def hear(self, destination: str, said: FleetSaid) -> None:
        """Applies what the fleet says."""
        self._apply(destination, self._breakers[destination], said)

    def lead(self, *, is_led: bool) -> None:
        """Whether the fleet decides from now on, or this daemon alone."""
        if self.is_led != is_led:
            self.is_led = is_led
            self._replan.set()

    def give_up(self, admission: Admission) -> None:
        """Ends an admission without a report; after a report this changes nothing."""
        if not admission.is_probe:
            return
        breaker = self._breakers[admission.destination]
        before = breaker.state
        self._apply(admission.destination, breaker, GivenUp(admission))
        if breaker.state is not before:
            breaker.lot.unpark()
            self._replan.set()

    def force(self, destination: str, phase: Literal["open", "closed"]) -> BreakerState:
        """For operators. Open lasts until it is forced closed; a disabled breaker stays closed."""
        breaker = self._breakers[destination]
        self._apply(destination, breaker, Forced(phase))
        return breaker.state

    def _ring(self) -> float:
        """Half-opens breakers that are due; returns when the next one is."""
        now = trio.current_time()
        next_at = math.inf
        for destination, breaker in self._breakers.items():
            if has_timer(breaker.state, is_led=self.is_led):
                self._apply(destination, breaker, TimerRang())
            if has_timer(breaker.state, is_led=self.is_led):
                next_at = min(next_at, max(breaker.state.until, now))
        return next_at

    def _apply(self, destination: str, breaker: _Breaker, event: BreakerEvent) -> None:
        before = breaker.state
        state = next_state(before, event, trio.current_time(), breaker.settings)
        breaker.state = state
        if state.phase == before.phase and state.until == before.until:
            return
        breaker.counts[state.phase] += state.phase != before.phase
        match state.phase:
            case "open":
                # The timer is planned anew; waiting tasks keep waiting.
                self._replan.set()
            case "half_open":
                breaker.lot.unpark(count=free_probes(state, breaker.settings))
                self._replan.set()
            case "closed":
                breaker.admission = Admission(destination, state.era)
                breaker.lot.unpark_all()
        failures = state.failures or before.failures
        error = state.last_error or before.last_error
        (log.warning if state.phase == "open" else log.info)(
            _EVENTS[state.phase],
            destination=destination,
            failures=failures,
            error=error,
            forced=isinstance(event, Forced),
        )
        self._changed(BreakerChanged(wall_ms(), destination, state.phase, failures, error))


_EVENTS: Final[dict[Phase, str]] = {
    "open": "breaker.opened",
    "half_open": "breaker.half_open",
    "closed": "breaker.closed",
}
