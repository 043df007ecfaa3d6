"""Heartbeat: this daemon's row in the fleet's list of daemons, and the list as operators see it.

Every BEAT_S it writes what this daemon reports about itself: its state, the backlog of its journal,
rates over the last interval, and the stores that it cannot reach. It writes once more when the
daemon drains and when it has stopped. Any daemon reads the whole list.

A daemon is lost if its row is older than LOST_MS on the store's clock. After an outage of the store
every row is old, so no daemon is called lost before this daemon has reached the store for SETTLE_S
without interruption: by then every living daemon has written its row again.

It owns its row and nothing else. Nothing waits for it except the end of the daemon, for one step.
While the store is away nothing is written. If the journal does not answer, its last figures stand.
On cancel the row stays as it is, and looks lost after a minute.

It cannot tell a daemon that is gone from one that does not reach the store.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import trio

from actors.ports.fleet import Member, MemberNote, MemberReport, Members, MemberState
from actors.ports.tiers import StoreCorrupt, StoreUnavailable
from actors.spooler.messages import Inquire
from actors.tiers.tiers import Tiers

BEAT_S: Final = 5.0
LOST_MS: Final = 60_000
SETTLE_S: Final = 30.0
"""Longer than a beat that was under way when the store came back (`cold.timeout`, 10 s by default),
and the pause after it."""
JOURNAL_S: Final = 2.0
"""How long the journal may take to answer. A disk that hangs must not make the daemon look lost."""
SWEEP_S: Final = 3600.0
STOPPED_MS: Final = 86_400_000
"""How long daemons that stopped with an empty backlog stay listed."""

ListedState = Literal["running", "draining", "stopped", "lost"]


class Listed(NamedTuple):
    member: Member
    state: ListedState
    is_this: bool


class Listing(NamedTuple):
    now_ms: int
    """On the store's clock, like every time of a member."""
    daemons: list[Listed]


@dataclass(frozen=True, slots=True)
class Counted:
    """What this daemon had done at a moment."""

    at_s: float
    accepted: int
    delivered: int


class Heartbeat:
    def __init__(self, members: Members, daemon: bytes, tiers: Tiers) -> None:
        self._members = members
        self._daemon = daemon
        self._tiers = tiers
        self._report = MemberReport()
        self._counted: Counted | None = None
        self._began_s = 0.0
        self._has_noted = False
        self._reached_since: float | None = None
        """Since when every step has reached the store; None: the last one did not."""
        self._swept_s = -SWEEP_S
        self._turn = trio.Lock()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Writes the row until the daemon has stopped."""
        self._began_s = trio.current_time()
        while self._report.state != "stopped":
            self._changed = trio.Event()
            await self._beat()
            with trio.move_on_after(BEAT_S):
                await self._changed.wait()

    def drain(self) -> None:
        """The daemon accepts nothing more."""
        self._become("draining")

    async def close(self) -> None:
        """Writes the row for the last time; the spooler still answers."""
        self._become("stopped")
        await self._beat()

    async def list(self) -> Listing:
        """Every daemon of the fleet. Raises StoreUnavailable."""
        now_ms, members = await self._members.all()
        now_s = trio.current_time()
        can_tell = self._reached_since is not None and now_s - self._reached_since >= SETTLE_S
        return Listing(
            now_ms,
            [
                Listed(
                    member,
                    listed_state(member, now_ms, can_tell=can_tell),
                    member.daemon == self._daemon,
                )
                for member in members
            ],
        )

    async def forget(self, daemon: bytes) -> bool:
        """Removes a daemon from the list; False: it was seen less than LOST_MS ago, or is not
        listed. Raises StoreUnavailable."""
        return await self._members.forget(daemon, LOST_MS)

    def _become(self, state: MemberState) -> None:
        self._report = replace(self._report, state=state)
        self._changed.set()

    async def _beat(self) -> None:
        async with self._turn:
            try:
                await self._look()
                await self._members.note(self._note())
                self._has_noted = True
                if trio.current_time() >= self._swept_s + SWEEP_S:
                    await self._members.sweep(STOPPED_MS)
                    self._swept_s = trio.current_time()
            except (StoreUnavailable, StoreCorrupt):
                # Actors that need the store log its outage; this daemon works on without its row.
                self._reached_since = None
            else:
                if self._reached_since is None:
                    self._reached_since = trio.current_time()

    async def _look(self) -> None:
        """Takes the figures of this moment. Raises StoreUnavailable."""
        shared = await self._members.counts()
        unreachable = ("valkey",) if self._tiers.warm.is_away else ()
        self._report = replace(self._report, unreachable=unreachable)
        with trio.move_on_after(JOURNAL_S), suppress(StoreUnavailable):
            books = (await self._tiers.spooler.client.ask(Inquire()))["daemon"]
            now = Counted(
                trio.current_time(),
                books["accepted"] + shared.accepted,
                books["delivered"] + shared.delivered,
            )
            accepted, delivered = rates(self._counted, now)
            self._counted = now
            self._report = replace(
                self._report,
                backlog=books["held"] + books["staged"],
                accepted_per_s=accepted,
                delivered_per_s=delivered,
            )

    def _note(self) -> MemberNote:
        last_ms = self._tiers.last_hand_over.at_ms
        return MemberNote(
            self._report,
            up_ms=round((trio.current_time() - self._began_s) * 1000),
            is_first=not self._has_noted,
            hand_over_age_ms=max(0, self._tiers.now_ms() - last_ms) if last_ms else None,
        )


def rates(before: Counted | None, now: Counted) -> tuple[float, float]:
    """Accepted and delivered items per second between two moments; 0 for the first moment."""
    if before is None or now.at_s <= before.at_s:
        return 0.0, 0.0
    seconds = now.at_s - before.at_s
    accepted = max(0, now.accepted - before.accepted) / seconds
    delivered = max(0, now.delivered - before.delivered) / seconds
    return round(accepted, 1), round(delivered, 1)


def listed_state(member: Member, now_ms: int, *, can_tell: bool) -> ListedState:
    """`can_tell`: living daemons have had the time to write their rows."""
    state = member.report.state
    is_old = now_ms - member.seen_ms > LOST_MS
    return "lost" if is_old and can_tell and state != "stopped" else state
