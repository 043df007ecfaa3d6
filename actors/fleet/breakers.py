"""Breakers of a fleet: what one daemon finds out, all know, and one of them tries.

Stands beside `Breakers`, and changes their state by `hear` alone. In comes what workers here found
out (`concluded`), and once a second what the fleet knows of the destinations named here. A breaker
that opens here is open for all within a second. When its time is over, the daemons ask for leave;
`half_open_probes` trials are given in the whole fleet, each for `HOLD_S`, so that a daemon that has
nothing to send, or dies, does not keep the others from trying. The fleet closes it when so many
trials were good.

While the shared store is away each daemon goes on alone, as without a fleet; when it is back, what
is open here is told first. An operator's word counts for the daemon it was said to.

Nothing is durable, and nothing waits for this: on cancel facts that were not told are dropped.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from actors.breaker.breaker import Breakers, BreakerState, FleetSaid, SendOutcome
from actors.config.queue import BreakerSettings
from actors.ports.tiers import StoreUnavailable

log = structlog.get_logger()

SYNC_S: Final = 1.0
HOLD_S: Final = 30.0
"""For so long a daemon may keep a trial that it was given."""
FACTS_MAX: Final = 1024
"""So many are kept until they are told; past that the oldest are forgotten."""


class FleetState(NamedTuple):
    """What is known of a destination. `left_s`: how long it is left alone; 0: it may be tried."""

    is_closed: bool
    left_s: float = 0.0


class FleetBreaker(Protocol):
    """Where it is kept. Any of these may raise StoreUnavailable."""

    async def opened(self, destination: str, left_s: float) -> None:
        """It is down, and is to be left alone for so long."""

    async def states(self, destinations: Sequence[str]) -> Mapping[str, FleetState]: ...

    async def ask(self, destination: str, probes: int, hold_s: float) -> int:
        """How many trials this daemon may make: as many of `probes` as nobody else has."""

    async def tried(self, destination: str, *, ok: bool, probes: int, reset_s: float) -> FleetState:
        """What came of a trial. So many must be good; one that is not opens it for `reset_s`."""


@dataclass(frozen=True, slots=True)
class _Fact:
    outcome: SendOutcome
    left_s: float
    """How long it is open from now; 0: it is not."""


class FleetBreakers:
    def __init__(self, breakers: Breakers, fleet: FleetBreaker) -> None:
        self._breakers = breakers
        self._fleet = fleet
        self._facts: deque[_Fact] = deque(maxlen=FACTS_MAX)
        self._news = trio.Event()
        breakers.concluded = self._conclude

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            self._news = trio.Event()
            try:
                await self.sync()
            except StoreUnavailable as problem:
                if self._breakers.is_led:
                    log.warning("breaker.fleet_is_away", error=str(problem))
                self._breakers.lead(is_led=False)
                self._facts.clear()
            with trio.move_on_after(SYNC_S):
                await self._news.wait()

    async def sync(self) -> None:
        """Tells what is to be told, and follows."""
        if not self._breakers.is_led:
            await self._tell_what_is_open()
        while self._facts:
            # It is told once: a second time a trial would count twice.
            await self._tell(self._facts.popleft())
        destinations = list(self._breakers.figures())
        states = await self._fleet.states(destinations) if destinations else {}
        self._breakers.lead(is_led=True)
        for destination, state in states.items():
            await self._follow(destination, state)

    def _conclude(self, outcome: SendOutcome, state: BreakerState) -> None:
        left_s = state.until - trio.current_time() if state.phase == "open" else 0.0
        self._facts.append(_Fact(outcome, left_s))
        self._news.set()

    async def _tell_what_is_open(self) -> None:
        for destination in self._breakers.figures():
            state = self._breakers.state(destination)
            if state.phase == "open" and not state.is_forced:
                await self._fleet.opened(destination, max(0.0, state.until - trio.current_time()))

    async def _tell(self, fact: _Fact) -> None:
        outcome = fact.outcome
        destination = outcome.destination
        if not outcome.was_probe:
            await self._fleet.opened(destination, fact.left_s)
            return
        settings = self._settings(destination)
        state = await self._fleet.tried(
            destination,
            ok=outcome.ok,
            probes=settings.half_open_probes,
            reset_s=settings.reset_timeout,
        )
        await self._follow(destination, state)

    async def _follow(self, destination: str, state: FleetState) -> None:
        here = self._breakers.state(destination)
        now = trio.current_time()
        if any(fact.outcome.destination == destination for fact in self._facts):
            # The fleet does not know yet what was found out here meanwhile.
            return
        if state.is_closed:
            self._breakers.hear(destination, FleetSaid("closed"))
        elif state.left_s > 0:
            self._breakers.hear(destination, FleetSaid("open", now + state.left_s))
        elif here.phase == "closed":
            self._breakers.hear(destination, FleetSaid("open", now))
        if state.is_closed or state.left_s > 0 or here.phase == "half_open" or here.is_forced:
            return
        probes = self._settings(destination).half_open_probes
        allowed = await self._fleet.ask(destination, probes, HOLD_S)
        if allowed:
            until = trio.current_time() + HOLD_S
            self._breakers.hear(destination, FleetSaid("half_open", until, allowed))

    def _settings(self, destination: str) -> BreakerSettings:
        return self._breakers.settings(destination)
