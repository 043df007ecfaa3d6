"""What a breaker knows about its destination, and how that changes: states, events, `next_state`.

Pure: time is an argument. Every change of phase begins a new era. An outcome counts only in the era
in which its send was admitted: a late failure is neither a probe's result nor a failure of the
closed breaker, and a late success closes nothing. An operator overrides the fleet, and the fleet
(actors/fleet/breakers.py) overrides what this daemon has found out alone.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

from actors.config.queue import BreakerSettings
from actors.model.slices import ERROR_TEXT_MAX

Phase = Literal["closed", "open", "half_open"]

NO_PROBE: Final = -1


@dataclass(frozen=True, slots=True)
class BreakerState:
    phase: Phase = "closed"
    era: int = 0
    """Grows with every change of phase."""
    failures: int = 0
    """Consecutive failures; kept until the breaker closes."""
    last_error: str = ""
    until: float = 0.0
    """Open: when it becomes half-open, on trio's clock; infinite: an operator opened it. Half-open
    with the fleet's permission: when that ends."""
    granted: int = 0
    """Half-open: trials admitted so far, which is the number of the next one."""
    probing: frozenset[int] = frozenset()
    """Half-open: trials under way."""
    succeeded: int = 0
    """Half-open: successful trials."""
    allowed: int = 0
    """Half-open with the fleet's permission: this daemon's share of trials; 0: it decides alone."""

    @property
    def is_forced(self) -> bool:
        """Whether an operator opened it."""
        return self.phase == "open" and math.isinf(self.until)


@dataclass(frozen=True, slots=True)
class Admission:
    """Permission to send one batch."""

    destination: str
    era: int
    probe: int = NO_PROBE

    @property
    def is_probe(self) -> bool:
        return self.probe != NO_PROBE


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The result of an admitted send. An answer that refuses an item is still `ok`."""

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
    """An operator closed the breaker, or opened it until further notice."""

    phase: Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class FleetSaid:
    """What all daemons know about the destination: it is down until then, it is up, or this daemon
    may make `allowed` trials until then."""

    phase: Phase
    until: float = 0.0
    allowed: int = 0


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Other settings apply from now on."""


BreakerEvent = (
    SendOutcome | ProbeGranted | GivenUp | TimerRang | Forced | FleetSaid | SettingsChanged
)


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
                # There was nothing to send meanwhile: let another daemon try.
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
            # The new settings may ask for fewer trials than have already succeeded, and no further
            # outcome would come to close the breaker.
            is_enough = state.succeeded >= settings.half_open_probes
            return _closed(state) if state.phase == "half_open" and is_enough else state
        case _:
            assert_never(event)


def has_timer(state: BreakerState, *, is_led: bool) -> bool:
    """Whether time alone changes the state."""
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
    """Closed: counts consecutive failures."""
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
    """Half-open: every trial must succeed; a single failure opens the breaker again."""
    if admission.probe not in state.probing:
        return state
    if not ok:
        return _open(state, now + settings.reset_timeout, state.failures + 1, error)
    succeeded = state.succeeded + 1
    # With the fleet's permission the fleet closes it: trials of other daemons may have failed.
    if not state.allowed and succeeded >= settings.half_open_probes:
        return _closed(state)
    return replace(state, probing=state.probing - {admission.probe}, succeeded=succeeded)


def _after_word(state: BreakerState, said: FleetSaid) -> BreakerState:
    """A state that an operator forced here stays."""
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
