"""What the torture does to a fleet: a fault each second, at random, of a seed.

A fault has a target (a host, Valkey, PostgreSQL, a host's way to one of them), which has one fault
at a time, and is put right when it ends. When it began and ended is kept: only what was in hand
then may be delivered twice.
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay import ForebayError
from tests.eventually import eventually_sync
from tests.fleet.world import Member, World

EVERY_S: Final = 1.0
RECOVERED_S: Final = 300.0
LEASE_S: Final = 4.0
"""A worker's: see quick.py."""
BACK_S: Final = 4.0
"""A server's clients take so long to find it."""
FOUND_OUT_S: Final = 3.0
"""Leases on rows are renewed every second, a step that may take as long as the store's timeout: who
hears that one is over lets go of the rows."""


@dataclass(slots=True)
class Fault:
    what: str
    target: str
    """A host's name, or a server's: then it is everybody's."""
    began: float
    ended: float = float("inf")

    @property
    def over(self) -> float:
        """When it has no more effect: who was killed is back, and who was frozen, or could not
        reach a server, has found out what is not his any more."""
        return self.ended + (BACK_S if self.what == "kill" else FOUND_OUT_S)

    def __str__(self) -> str:
        return f"{self.what} {self.target} for {self.ended - self.began:.1f} s"


@dataclass(frozen=True, slots=True)
class Kind:
    what: str
    target: str
    begin: Callable[[], object]
    end: Callable[[], object]
    lasts_s: tuple[float, float]
    lock: str
    """What nothing else may happen to meanwhile."""
    wait_back: Callable[[], object] = lambda: None
    """Until the target has recovered: a slow machine takes its time to start a daemon."""


class Faults:
    def __init__(self, world: World, seed: int) -> None:
        self._random = random.Random(seed)
        self._kinds = kinds(world)
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.done: list[Fault] = []
        self.problems: list[BaseException] = []

    def run(self, seconds: float) -> None:
        """Faults for so long; then everything is as it should be."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            with self._lock:
                free = [kind for kind in self._kinds if kind.lock not in self._busy]
                kind = self._random.choice(free) if free else None
                lasts_s = self._random.uniform(*kind.lasts_s) if kind else 0.0
                if kind is not None:
                    self._busy.add(kind.lock)
            if kind is not None:
                thread = threading.Thread(target=self._do, args=(kind, lasts_s))
                thread.start()
                self._threads.append(thread)
            self._stopping.wait(EVERY_S)
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _do(self, kind: Kind, lasts_s: float) -> None:
        fault = Fault(kind.what, kind.target, time.time())
        self.done.append(fault)
        try:
            kind.begin()
            self._stopping.wait(lasts_s)
            kind.end()
        except BaseException as problem:
            self.problems.append(problem)
        with self._lock:
            self._busy.remove(kind.lock)
        try:
            kind.wait_back()
        except BaseException as problem:
            self.problems.append(problem)
        fault.ended = time.time()


def kinds(world: World) -> list[Kind]:
    found = [
        Kind("kill", "valkey", world.valkey.kill, world.valkey.start, (0, 2), "valkey"),
        Kind("hang", "valkey", world.valkey.pause, world.valkey.resume, (0.2, 3), "valkey"),
        Kind("stop", "postgres", world.postgres.stop, world.postgres.start, (0, 3), "postgres"),
        Kind("hang", "postgres", world.postgres.pause, world.postgres.resume, (1, 4), "postgres"),
    ]
    for host in world.hosts:
        found += kinds_of(host)
    return found


def kinds_of(host: Member) -> list[Kind]:
    def restart() -> None:
        host.launch("--wait-for-stores")

    def ping() -> None:
        with host.client() as client:
            client.ping()

    def wait_back() -> None:
        # It may be killed again, or frozen, before it serves.
        eventually_sync(ping, errors=(ForebayError,), deadline_s=RECOVERED_S)

    found = [
        Kind("kill", host.name, host.kill, restart, (0, 2), host.name, wait_back),
        Kind("freeze", host.name, host.pause, host.resume, (LEASE_S, LEASE_S + 2), host.name),
    ]
    for name, front in (("valkey", host.valkey), ("postgres", host.postgres)):
        lock = f"{host.name}-{name}"
        found += [
            Kind(f"cut {name} of", host.name, front.cut, front.restore, (0, 0), lock),
            Kind(f"hang {name} of", host.name, front.hang, front.restore, (0.5, 4), lock),
            Kind(f"refuse {name} of", host.name, front.refuse, front.restore, (0.2, 3), lock),
        ]
    return found
