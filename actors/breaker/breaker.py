"""Breakers: one for each destination, so that what is down is left alone until it is up again.

Owns the state of every breaker. Outcomes of sends come in through `report`; out go frozen states
(`state`), counters (`figures`), and admissions: whoever wants to send asks `admit` first. Closed,
it answers at once. Open, it waits: nothing is attempted, and nothing spends an attempt. Half-open,
it admits `half_open_probes` trials and lets all others wait on until each of the trials was good.

`report` is a plain call that applies `next_state` (actors/breaker/state.py) at once, not a message.
A bounded inbox would have to drop outcomes or make workers wait, a probe's outcome must never be
dropped, and between the failure that opens a breaker and the turn of an inbox's reader every other
worker would be let through. Between two awaits trio runs one task, so that the state is still
changed by this file alone. `run` keeps the one timer that there is: for the open breaker that is
due next.

Where daemons share what they know (actors/fleet/breakers.py), an open breaker waits for the fleet's
word instead of its timer, so that all of them together make `half_open_probes` trials. While the
fleet cannot be heard, each goes on alone.

Nothing is durable: a daemon starts with closed breakers and finds out. On drain and on cancel
waiters are cancelled, and have taken nothing. Whoever was admitted and does not report must
`give_up`, or a probe's place stays taken; after a report that does nothing, and so it may stand in
a `finally`. A destination that no queue names any more is kept until the end of the process.
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
    """Tasks that want to send."""
    opened_total: int
    half_opened_total: int
    closed_total: int
    stale_total: int
    """Outcomes that came too late to count."""
    rejected_total: int = 0
    """How often somebody who wanted to send was made to wait."""


class _Breaker:
    """One destination's: its state, who waits, and what was counted."""

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
        """`changed` is told of every change of phase."""
        self._changed = changed
        self._breakers: dict[str, _Breaker] = {}
        self._replan = trio.Event()
        self.is_led = False
        """The fleet says when an open breaker may be tried (actors/fleet/breakers.py)."""
        self.concluded: Callable[[SendOutcome, BreakerState], None] = lambda *_: None
        """Told of outcomes that the fleet must hear of: what opened a breaker, and trials."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            self._replan = trio.Event()
            with trio.move_on_at(self._ring()):
                await self._replan.wait()

    def name(self, destination: str, settings: BreakerSettings) -> None:
        """A queue names its destination; the settings of the first one count."""
        if destination not in self._breakers:
            self._breakers[destination] = _Breaker(destination, settings)

    def change(self, destination: str, settings: BreakerSettings) -> None:
        """Other settings for a destination that was named; the state is kept where it can be."""
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
        """Waits for leave to send. No checkpoint where it is given at once: the send is one."""
        while (admission := self.admit_nowait(destination)) is None:
            await self._breakers[destination].lot.park()
        return admission

    def admit_nowait(self, destination: str) -> Admission | None:
        """None: it would have to wait."""
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
            # As mostly: nothing follows from it.
            return
        self._apply(destination, breaker, outcome)
        has_opened = before.phase == "closed" and breaker.state.phase == "open"
        was_trial = before.phase == "half_open" and breaker.state is not before
        if has_opened or was_trial:
            self.concluded(outcome, breaker.state)

    def hear(self, destination: str, said: FleetSaid) -> None:
        """The fleet's word."""
        self._apply(destination, self._breakers[destination], said)

    def lead(self, *, is_led: bool) -> None:
        """Whether the fleet leads from now on, or this daemon is on its own."""
        if self.is_led != is_led:
            self.is_led = is_led
            self._replan.set()

    def give_up(self, admission: Admission) -> None:
        """It will not be reported; if it has been, this changes nothing."""
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
        """Half-opens what is due; when the next one is."""
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
                # The timer is planned anew; whoever waits goes on waiting.
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
