"""Breakers: one for each destination, so that what is down is left alone until it is up again.

Owns the state of every breaker. Outcomes of sends come in through `report`; out go frozen states
(`state`), counters (`figures`), and admissions: whoever wants to send asks `admit` first. Closed,
it answers at once. Open, it waits: nothing is attempted, and nothing spends an attempt. Half-open,
it admits `half_open_probes` trials and lets all others wait on until each of the trials was good.

`report` is a plain call that applies `next_state` at once, not a message. A bounded inbox would
have to drop outcomes or make workers wait, a probe's outcome must never be dropped, and between
the failure that opens a breaker and the turn of an inbox's reader every other worker would be let
through. Between two awaits trio runs one task, so that the state is still changed by this file
alone. `run` keeps the one timer that there is: for the open breaker that is due next.

Every change of phase begins a new era. An outcome counts only in the era in which its send was
admitted: a late failure from before is neither a probe's result nor a failure of the closed
breaker, and a late success closes nothing.

Where daemons share what they know (actors/fleet_breakers.py), an open breaker waits for the fleet's
word instead of its timer, so that all of them together make `half_open_probes` trials. While the
fleet cannot be heard, each goes on alone.

Nothing is durable: a daemon starts with closed breakers and finds out. On drain and on cancel
waiters are cancelled, and have taken nothing. Whoever was admitted and does not report must
`give_up`, or a probe's place stays taken; after a report that does nothing, and so it may stand in
a `finally`. A destination that no queue names any more is kept until the end of the process.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

import structlog
import trio

from actors.clock import wall_ms
from actors.events import BreakerChanged
from actors.queue_settings import BreakerSettings
from actors.slices import ERROR_TEXT_MAX

log = structlog.get_logger()

Phase = Literal["closed", "open", "half_open"]

NO_PROBE: Final = -1


@dataclass(frozen=True, slots=True)
class BreakerState:
    phase: Phase = "closed"
    era: int = 0
    """Grows with every change of phase."""
    failures: int = 0
    """In a row; kept until the breaker closes."""
    last_error: str = ""
    until: float = 0.0
    """Open: when it becomes half-open, on trio's clock; infinite: an operator opened it. Half-open
    by the fleet's leave: when that ends."""
    granted: int = 0
    """Half-open: trials that were ever admitted, the number of the next one."""
    probing: frozenset[int] = frozenset()
    """Half-open: trials that are out."""
    succeeded: int = 0
    """Half-open: trials that were good."""
    allowed: int = 0
    """Half-open by the fleet's leave: how many trials this daemon has; 0: it decides alone."""

    @property
    def is_forced(self) -> bool:
        """An operator opened it."""
        return self.phase == "open" and math.isinf(self.until)


@dataclass(frozen=True, slots=True)
class Admission:
    """Leave to send one batch."""

    destination: str
    era: int
    probe: int = NO_PROBE

    @property
    def is_probe(self) -> bool:
        return self.probe != NO_PROBE


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What came of an admitted send. An answer that refuses an item is still `ok`."""

    admission: Admission
    ok: bool
    error: str = ""

    @property
    def destination(self) -> str:
        return self.admission.destination

    @property
    def was_probe(self) -> bool:
        return self.admission.is_probe


@dataclass(frozen=True, slots=True)
class ProbeGranted:
    """A trial was admitted; its number is the state's `granted`."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An admitted send will not be reported."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class TimerRang:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Forced:
    """An operator's word: closed, or open until the operator says otherwise."""

    phase: Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class FleetSaid:
    """What all daemons know of the destination: it is down until then, it is up, or this daemon
    has leave for so many trials until then."""

    phase: Phase
    until: float = 0.0
    allowed: int = 0


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """From now on other settings are given."""


BreakerEvent = (
    SendOutcome | ProbeGranted | GivenUp | TimerRang | Forced | FleetSaid | SettingsChanged
)


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
        """The fleet says when an open breaker may be tried (actors/fleet_breakers.py)."""
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


def next_state(
    state: BreakerState, event: BreakerEvent, now: float, settings: BreakerSettings
) -> BreakerState:
    """The state after an event; the same object if the event changes nothing."""
    if not settings.enabled:
        return state if state.phase == "closed" else _closed(state)
    match event:
        case SendOutcome(admission, ok, error):
            if admission.era != state.era or state.phase == "open":
                return state
            if state.phase == "half_open":
                return _after_probe(state, admission, ok, error, now, settings)
            return _after_send(state, ok, error, now, settings)
        case ProbeGranted():
            if free_probes(state, settings) == 0:
                return state
            probing = state.probing | {state.granted}
            return replace(state, granted=state.granted + 1, probing=probing)
        case GivenUp(admission):
            if admission.era != state.era or admission.probe not in state.probing:
                return state
            return replace(state, probing=state.probing - {admission.probe})
        case TimerRang():
            if now < state.until:
                return state
            if state.allowed and not state.probing:
                # Nobody had anything to send meanwhile: others may try.
                return _open(state, now, state.failures, state.last_error)
            if state.phase != "open":
                return state
            return BreakerState("half_open", state.era + 1, state.failures, state.last_error)
        case Forced(phase):
            if phase == "open":
                return _open(state, math.inf, state.failures, state.last_error)
            return _closed(state)
        case FleetSaid():
            return _after_word(state, event)
        case SettingsChanged():
            if state.allowed:
                return state
            # Fewer trials may be asked for than were good already: nobody would come to say so.
            is_enough = state.succeeded >= settings.half_open_probes
            return _closed(state) if state.phase == "half_open" and is_enough else state
        case _:
            assert_never(event)


def has_timer(state: BreakerState, *, is_led: bool) -> bool:
    """Whether time alone changes it."""
    if state.allowed:
        return not state.probing
    return state.phase == "open" and not is_led


def free_probes(state: BreakerState, settings: BreakerSettings) -> int:
    """How many more trials may be admitted now."""
    if state.phase != "half_open":
        return 0
    probes = state.allowed or settings.half_open_probes
    return max(0, probes - len(state.probing) - state.succeeded)


def _after_send(
    state: BreakerState, ok: bool, error: str, now: float, settings: BreakerSettings
) -> BreakerState:
    """Closed: failures in a row are counted."""
    if ok:
        return _closed(state) if state.failures else state
    failures = state.failures + 1
    if failures >= settings.threshold:
        return _open(state, now + settings.reset_timeout, failures, error)
    return replace(state, failures=failures, last_error=error[:ERROR_TEXT_MAX])


def _after_probe(
    state: BreakerState,
    admission: Admission,
    ok: bool,
    error: str,
    now: float,
    settings: BreakerSettings,
) -> BreakerState:
    """Half-open: each trial must be good, and one that is not is enough."""
    if admission.probe not in state.probing:
        return state
    if not ok:
        return _open(state, now + settings.reset_timeout, state.failures + 1, error)
    succeeded = state.succeeded + 1
    # With the fleet's leave it is the fleet that closes it: others may have failed.
    if not state.allowed and succeeded >= settings.half_open_probes:
        return _closed(state)
    return replace(state, probing=state.probing - {admission.probe}, succeeded=succeeded)


def _after_word(state: BreakerState, said: FleetSaid) -> BreakerState:
    """What an operator forced here stays."""
    if state.is_forced:
        return state
    match said.phase:
        case "open":
            if state.phase == "open" and said.until <= state.until:
                return state
            return _open(state, said.until, state.failures, state.last_error)
        case "half_open":
            if state.phase != "open":
                return state
            return BreakerState(
                "half_open",
                state.era + 1,
                state.failures,
                state.last_error,
                said.until,
                allowed=said.allowed,
            )
        case "closed":
            return state if state.phase == "closed" else _closed(state)


def _open(state: BreakerState, until: float, failures: int, error: str) -> BreakerState:
    era = state.era + (state.phase != "open")
    return BreakerState("open", era, failures, error[:ERROR_TEXT_MAX], until)


def _closed(state: BreakerState) -> BreakerState:
    return BreakerState("closed", state.era + (state.phase != "closed"))
