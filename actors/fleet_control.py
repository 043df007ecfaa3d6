"""The fleet as people see it (docs/protocol.md, "Fleet"): `fleet.list` and `fleet.adopt`.

Adopting is for a daemon that never returns: what it had entered into the shared warm queue, and
nobody has in hand, becomes this daemon's. Each run is stored in this journal first, under its own
id, and taken out of the queue when that is durable. A kill in between leaves it in both places;
the same step, repeated, finds the run stored before (DUPLICATE) and takes it out.

Owns nothing. One request works for `STEP_S` at most and says whether there is more. On cancel,
whatever is not taken out stays in the queue.

What it can't do: know whether the daemon will return after all. Its journal still has those items,
and would deliver them again, with the same ids, unless its spool was released (`forebay spool
export --release`). Nor does it carry the texts of earlier errors; attempts and due times go along.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import structlog
import trio

from actors.control import Fields, Operation, bad
from actors.messages import Append, SpoolerMessage
from actors.moving import moved_run
from actors.slices import Slice
from actors.tiers import StoreUnavailable
from forebay.errors import BadRun, Refused
from forebay.run import read_head
from forebay.wire import Outcome

log = structlog.get_logger()

STEP_S: Final = 10.0
STORE_S: Final = 40.0
"""For one page of runs to be stored; longer than a push may wait for room."""
CLAIM_S: Final = 120.0
"""So long nobody else adopts the same daemon; renewed with each page."""
ID_DIGITS_MIN: Final = 4

assert CLAIM_S > STEP_S + STORE_S


class OwnerInQueue(NamedTuple):
    """A daemon, and what its journal has lent through one queue."""

    queue: str
    daemon: bytes
    valid_until_ms: int
    """On the server's clock; 0: it has not been heard of for a day."""
    items: int
    leased: int


class LeftThere(NamedTuple):
    """A page of what a lapsed daemon has in a queue, and nobody has in hand."""

    is_valid: bool
    """It is back: there is nothing to adopt."""
    slices: list[Slice]
    tokens: list[int]
    cursor: bytes
    """Where the next page begins; empty: this was the last."""


class LostOwnersPort(Protocol):
    """Every method raises StoreUnavailable as those of a warm queue do."""

    async def owners(self) -> tuple[int, list[OwnerInQueue]]:
        """The server's time, and every daemon in every queue."""

    async def claim(self, daemon: bytes, for_s: float) -> bool:
        """Nobody else adopts it for so long; False: somebody else does."""

    async def disclaim(self, daemon: bytes) -> None:
        """Others may adopt it."""

    async def left(self, queue: str, daemon: bytes, cursor: bytes) -> LeftThere:
        """A page of what waits; nothing is changed."""

    async def take(self, queue: str, daemon: bytes, tokens: Sequence[int]) -> int | None:
        """Takes these slices out, as far as they are as they were; how many items. None: the
        daemon is valid again, and nothing was taken."""


@dataclass(slots=True)
class Standing:
    """A daemon in all queues."""

    daemon: bytes
    valid_until_ms: int = 0
    queues: dict[str, OwnerInQueue] = field(default_factory=dict)

    def as_object(self, now_ms: int, this: bytes) -> dict[str, Any]:
        queues = [
            {"queue": entry.queue, "items": entry.items, "leased": entry.leased}
            for entry in sorted(self.queues.values())
        ]
        return {
            "daemon": self.daemon.hex(),
            "is_this": self.daemon == this,
            "is_valid": self.valid_until_ms > now_ms,
            "valid_until_ms": self.valid_until_ms or None,
            "items": sum(entry.items for entry in self.queues.values()),
            "leased": sum(entry.leased for entry in self.queues.values()),
            "queues": queues,
        }


class FleetControl:
    def __init__(
        self,
        owners: LostOwnersPort | None,
        spooler: trio.MemorySendChannel[SpoolerMessage],
        this: bytes,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        """`owners`: None of a daemon that shares no warm queue. `this` is this daemon's id."""
        self._owners = owners
        self._spooler = spooler
        self._this = this
        self._now = now

    @property
    def operations(self) -> Mapping[str, Operation]:
        return {"fleet.list": self._list, "fleet.adopt": self._adopt}

    async def _list(self, fields: Fields) -> dict[str, Any]:
        fields.end()
        now_ms, standings = await self._look()
        daemons = [standing.as_object(now_ms, self._this) for standing in standings.values()]
        return {"now_ms": now_ms, "daemons": sorted(daemons, key=lambda each: str(each["daemon"]))}

    async def _adopt(self, fields: Fields) -> dict[str, Any]:
        given = fields.text("daemon")
        fields.end()
        owners = self._port()
        now_ms, standings = await self._look()
        standing = chosen(given, standings)
        check_adoptable(standing, self._this, now_ms)
        if not await owners.claim(standing.daemon, CLAIM_S):
            raise Refused("BUSY", "another daemon adopts it now", retry_after_ms=1000)
        try:
            runs, items, is_over = await self._adopt_all(standing)
        finally:
            # If it cannot be told, the claim runs out.
            with trio.CancelScope(shield=True), suppress(StoreUnavailable):
                await owners.disclaim(standing.daemon)
        if items:
            log.warning("fleet.adopted", daemon=standing.daemon.hex(), items=items)
        return adopted(standing, runs, items, more=not is_over)

    async def _adopt_all(self, standing: Standing) -> tuple[int, int, bool]:
        """How many runs and items, and whether that was all."""
        owners, until = self._port(), self._now() + STEP_S
        runs = items = 0
        for queue in sorted(standing.queues):
            cursor = b""
            while True:
                page = await owners.left(queue, standing.daemon, cursor)
                items += await self._store_page(queue, standing.daemon, page)
                runs, cursor = runs + len(page.slices), page.cursor
                if not cursor:
                    break
                if self._now() >= until:
                    return runs, items, False
                await owners.claim(standing.daemon, CLAIM_S)
        return runs, items, True

    async def _store_page(self, queue: str, daemon: bytes, page: LeftThere) -> int:
        """Stores the page, then takes it out; how many items."""
        if page.is_valid:
            raise returned(daemon)
        if not page.slices:
            return 0
        await self._store(page.slices)
        taken = await self._port().take(queue, daemon, page.tokens)
        if taken is None:
            raise returned(daemon)
        return sum(slice_.items for slice_ in page.slices)

    async def _store(self, slices: Sequence[Slice]) -> None:
        """In the journal, durable. Refused: nothing is to be taken out for it."""
        try:
            made = [moved_run(slice_) for slice_ in slices]
        except BadRun as problem:
            raise Refused("BAD_RUN", f"what is there is no run: {problem}") from problem
        answers = _Answers(len(made))
        with trio.move_on_after(STORE_S):
            for sequence, data in enumerate(made):
                await self._spooler.send(Append(read_head(data), data, answers, sequence))
            await answers.complete.wait()
        if answers.refused is not None:
            raise answers.refused
        if not answers.complete.is_set():
            raise StoreUnavailable(f"the journal has not stored it within {STORE_S:.0f} s")

    async def _look(self) -> tuple[int, dict[bytes, Standing]]:
        now_ms, found = await self._port().owners()
        return now_ms, standings_of(found)

    def _port(self) -> LostOwnersPort:
        if self._owners is None:
            raise bad("this daemon is no part of a fleet: it shares no warm queue (warm.type)")
        return self._owners


class _Answers:
    """What the spooler says of the runs of one page."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.refused: Refused | None = None
        self.complete = trio.Event()

    def put(self, sequence: int, answer: Outcome | Refused) -> None:
        if isinstance(answer, Refused):
            self.refused = answer
        self._left -= 1

    def flush(self) -> None:
        if not self._left:
            self.complete.set()


def standings_of(found: Sequence[OwnerInQueue]) -> dict[bytes, Standing]:
    standings: dict[bytes, Standing] = {}
    for entry in found:
        standing = standings.setdefault(entry.daemon, Standing(entry.daemon))
        standing.valid_until_ms = max(standing.valid_until_ms, entry.valid_until_ms)
        standing.queues[entry.queue] = entry
    return standings


def chosen(given: str, standings: Mapping[bytes, Standing]) -> Standing:
    """The daemon whose id begins so."""
    wanted = given.lower()
    found = [each for each in standings.values() if each.daemon.hex().startswith(wanted)]
    if len(wanted) < ID_DIGITS_MIN or not found:
        raise Refused("NOT_FOUND", f"the warm queue knows no daemon {given}")
    if len(found) > 1:
        raise bad(f"{given} may be any of {len(found)} daemons: give more of its id")
    return found[0]


def check_adoptable(standing: Standing, this: bytes, now_ms: int) -> None:
    if standing.daemon == this:
        raise bad("this is the daemon that you ask: there is nothing to adopt")
    if standing.valid_until_ms > now_ms:
        seconds = (standing.valid_until_ms - now_ms) / 1000
        raise Refused(
            "CONFLICT",
            f"the daemon {standing.daemon.hex()} is there, and valid for {seconds:.1f} s from now "
            "on: only what a lapsed one has left can be adopted",
        )


def returned(daemon: bytes) -> Refused:
    return Refused(
        "CONFLICT", f"the daemon {daemon.hex()} has come back: what was not adopted yet is its own"
    )


def adopted(standing: Standing, runs: int, items: int, *, more: bool) -> dict[str, Any]:
    leased = sum(entry.leased for entry in standing.queues.values())
    return {
        "daemon": standing.daemon.hex(),
        "runs": runs,
        "items": items,
        "leased": leased,
        "more": more,
    }
