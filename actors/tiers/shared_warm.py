"""The warm tier of a fleet: a queue that all daemons share, and this process's memory.

Only rows of the shared cold store are in the shared queue. A row that is there is locked under the
queue's epoch, and no daemon renews it: the shared queue alone decides which daemon has an item.
This process's memory holds runs of its own journal while the cold store cannot take them over; it
is leased first.

Rows go in (`bring`, `enter_rows`): locked under the epoch in the cold store first, then entered, by
a deadline on the server's clock, because other daemons may take care of the rows after that
(actors/tiers/shared_promoter.py). Rows that do not fit are free again. If it is not known whether
rows have entered, they stay locked, and the reconciliation finds out.

Rows go out: `end` keeps the lease until the cold store has recorded the outcome (`recorded`), and
only then removes the slice. So an item that is neither in warm nor settled cannot exist, and a
crash between the two repeats nothing: a slice whose lease has run out is compared with its row
before it is lent again. A lease that was lost ends with False.

When the server does not answer, the queue counts as away, and when it refuses rows, nothing enters
for REST_S: items are leased from the cold store on demand then (actors/tiers/fetch.py). Leases that
were taken before end in the cold store alone, as long as they have not run out on this host's
clock. Rows in the queue wait for the server. If it has forgotten them, they are due again after
LOST_S or the queue's lease time (actors/tiers/shared_promoter.py).

While the cold store does not record outcomes, no more rows are leased.

It owns nothing. Cancellation is as the port says. Tokens of this process's memory are small.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import structlog
import trio

from actors.model.clock import Clock
from actors.model.slices import InCold, LentRun, Slice
from actors.ports.fleet import RemoteWarm, SharedRows
from actors.ports.tiers import (
    ColdQueue,
    Ending,
    Entered,
    Fill,
    Leased,
    Limits,
    NewRow,
    StoreRefused,
    StoreUnavailable,
    WarmFlow,
    WarmQueue,
    Whereabouts,
)
from actors.tiers.fetch import lock_of, slice_of, unlocked
from actors.tiers.leasing import first_of, total

log = structlog.get_logger()

OWN_BELOW: Final = 1 << 56
"""Tokens of this process's memory; those of the shared queue begin with a byte that is not 0."""
FILL_S: Final = 0.05
"""How long an answer about how full the queue is will do. The queue keeps its limits itself; a look
before every step took a third of all commands."""
ENTER_MS: Final = 10_000
"""How long rows that are locked under the epoch may take to enter."""
HOLD_S: Final = 60.0
"""How long a lease is kept for an outcome that is not recorded yet; renewed every KEEP_S."""
KEEP_S: Final = 15.0
AWAY_S: Final = 1.0
BEHIND_S: Final = 2.0
"""How old an outcome may be that is not recorded; after that no more rows are leased."""
REST_S: Final = 5.0
"""How long nothing enters a server that has refused rows."""


class _Hold(NamedTuple):
    queue: str
    ending: Ending
    since: float
    """On trio's clock."""


class SharedWarm:
    def __init__(
        self,
        remote: RemoteWarm,
        own: WarmQueue,
        rows: SharedRows,
        cold: ColdQueue,
        now_ms: Clock,
    ) -> None:
        self.remote = remote
        self.own = own
        self.rows = rows
        self._cold = cold
        self._now_ms = now_ms
        self.is_away = False
        self.away_total = 0
        """How many times the server went away."""
        self.stale_total = 0
        """Slices that were settled already when they were lent again."""
        self.forgotten = trio.Event()
        """Set when the server has lost its memory."""
        self._generation = ""
        self._rests_until = -math.inf
        self._epochs: dict[str, bytes] = {}
        self._leased: dict[int, Leased] = {}
        self._holds: dict[int, _Hold] = {}
        """Leases that have ended, and whose outcome is not recorded yet; the oldest first."""
        self._fills: dict[str, tuple[float, Fill]] = {}
        self._changed = trio.Event()

    # Whether the server answers.

    def lose(self, problem: StoreUnavailable) -> None:
        if not self.is_away:
            self.is_away = True
            self.away_total += 1
            self._epochs.clear()
            log.error("warm.away", error=str(problem))
            self._tell_all()

    @property
    def takes_rows(self) -> bool:
        """Whether rows may enter now."""
        return not self.is_away and trio.current_time() >= self._rests_until

    def _rest(self, problem: StoreRefused) -> None:
        """Lets nothing enter for a while: a server that is full drains meanwhile."""
        if trio.current_time() >= self._rests_until + 2 * REST_S:
            log.warning("warm.refuses", error=str(problem))
        self._rests_until = trio.current_time() + REST_S
        self._tell_all()

    def _tell_all(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Notices that the server is back or has forgotten, and keeps leases that are held."""
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.remote.run)
            kept_at = trio.current_time()
            while True:
                try:
                    await self._watch()
                    if trio.current_time() >= kept_at + KEEP_S:
                        kept_at = trio.current_time()
                        await self._keep_holds()
                except StoreUnavailable as problem:
                    self.lose(problem)
                await trio.sleep(AWAY_S)

    async def _watch(self) -> None:
        generation = await self.remote.generation()
        if self._generation and generation != self._generation:
            log.error("warm.forgot")
            self._epochs.clear()
            self.forgotten.set()
            self.forgotten = trio.Event()
        self._generation = generation
        if self.is_away:
            self.is_away = False
            log.info("warm.back")
            self._tell_all()

    async def _keep_holds(self) -> None:
        queues: dict[str, list[int]] = {}
        for token, hold in self._holds.items():
            queues.setdefault(hold.queue, []).append(token)
        for queue, tokens in queues.items():
            await self.remote.extend(queue, tokens, HOLD_S)

    # Rows go in.

    async def epoch(self, queue: str) -> bytes | None:
        """The queue's epoch; None: the server is away."""
        found = self._epochs.get(queue)
        if found is None and not self.is_away:
            try:
                found = self._epochs[queue] = await self.remote.epoch(queue)
            except StoreUnavailable as problem:
                self.lose(problem)
        return found

    def deadline_ms(self) -> int:
        """Until when rows that are locked from now on may enter."""
        return self.remote.server_ms() + ENTER_MS

    async def bring(
        self, queue: str, wanted: Limits, limits: Limits, except_flows: frozenset[str]
    ) -> int:
        """Brings due rows from the cold store, within `wanted`; returns how many items."""
        epoch = await self.epoch(queue)
        if epoch is None or not self.takes_rows:
            return 0
        before_ms = self.deadline_ms()
        rows = await self.rows.acquire(queue, epoch, wanted.items, wanted.bytes, except_flows)
        slices = [slice_of(row, epoch) for row in rows]
        await self.enter_rows(queue, slices, limits, before_ms)
        return sum(slice_.items for slice_ in slices)

    async def enter_rows(
        self, queue: str, slices: Sequence[Slice], limits: Limits, before_ms: int
    ) -> None:
        """Enters rows that are locked under the epoch; those that do not fit are free again."""
        if not slices:
            return
        try:
            entered = await self.remote.enter(queue, slices, limits, before_ms)
        except StoreRefused as problem:
            # It is full, or has forgotten the epoch.
            self._epochs.pop(queue, None)
            self._rest(problem)
            rest = list(slices)
        except StoreUnavailable as problem:
            # They may have entered: the reconciliation finds out.
            self.lose(problem)
            return
        else:
            rest = entered.rest
            self._fills[queue] = trio.current_time(), entered.fill
        if rest:
            with suppress(StoreUnavailable):
                await self._cold.settle([unlocked(slice_) for slice_ in rest])

    # The port.

    async def enter(self, queue: str, slices: Sequence[Slice], limits: Limits) -> Entered:
        """Enters runs of this daemon's journal into its memory. Rows that were taken out of the
        shared queue are free in the cold store again: another daemon may have missed them there."""
        rows = [slice_ for slice_ in slices if isinstance(slice_.run.owner, InCold)]
        if rows:
            with suppress(StoreUnavailable):
                await self._cold.settle([unlocked(slice_) for slice_ in rows])
        of_journal = [slice_ for slice_ in slices if not isinstance(slice_.run.owner, InCold)]
        return await self.own.enter(queue, of_journal, limits)

    async def lease(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str] = frozenset(),
    ) -> list[Leased]:
        wanted = (queue, items_max, bytes_max, lease_s, except_flows)
        own = await self.own.lease(*wanted)
        if own or self.is_away or self._is_behind:
            return own
        try:
            found = await self.remote.lease_rows(*wanted)
            leased = [lease for lease, has_run_out in found if not has_run_out]
            if len(leased) < len(found):
                leased += await self._compared(queue, [lease for lease, ran in found if ran])
        except StoreUnavailable as problem:
            self.lose(problem)
            return []
        self._leased |= {lease.token: lease for lease in leased}
        return leased

    @property
    def _is_behind(self) -> bool:
        """Whether the cold store does not record outcomes now."""
        oldest = next(iter(self._holds.values()), None)
        return oldest is not None and trio.current_time() > oldest.since + BEHIND_S

    async def _compared(self, queue: str, leased: Sequence[Leased]) -> list[Leased]:
        """Slices whose lease had run out, without the items that are settled by now."""
        try:
            rows = [row_of(lease.slice) for lease in leased]
            left = await self.rows.left(lock_of(leased[0].slice), rows)
        except StoreUnavailable:
            await self.remote.end(queue, [Ending(one.token, (one.slice,)) for one in leased])
            return []
        good: list[Leased] = []
        done: list[Ending] = []
        for lease in leased:
            bits = lease.slice.bits & left.get(row_of(lease.slice), 0)
            if bits == lease.slice.bits:
                good.append(lease)
            else:
                rest = (replace(lease.slice, bits=bits),) if bits else ()
                done.append(Ending(lease.token, rest))
        if done:
            self.stale_total += len(done)
            await self.remote.end(queue, done)
        return good

    async def end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        own = [ending for ending in endings if ending.token < OWN_BELOW]
        shared = [ending for ending in endings if ending.token >= OWN_BELOW]
        if not shared:
            return await self.own.end(queue, own)
        answers = dict(zip((e.token for e in own), await self.own.end(queue, own), strict=True))
        answers |= await self._end(queue, shared)
        return [answers[ending.token] for ending in endings]

    async def _end(self, queue: str, endings: Sequence[Ending]) -> dict[int, bool]:
        leases = {ending.token: self._leased.pop(ending.token, None) for ending in endings}
        untried = [e for e in endings if is_untried(leases[e.token], e)]
        tried = [e for e in endings if not is_untried(leases[e.token], e)]
        answers: dict[int, bool] = {}
        try:
            if self.is_away:
                raise StoreUnavailable("the shared warm queue is away")
            if untried:
                ended = await self.remote.end(queue, untried)
                answers |= dict(zip((e.token for e in untried), ended, strict=True))
            if tried:
                tokens = [ending.token for ending in tried]
                kept = await self.remote.extend(queue, tokens, HOLD_S)
                answers |= dict(zip(tokens, kept, strict=True))
        except StoreUnavailable as problem:
            self.lose(problem)
        for ending in tried:
            lease = leases[ending.token]
            if not answers.get(ending.token, False) and lease is not None:
                # A server that still knows the epoch has said no. If it is away or has forgotten,
                # the row's lock decides, as long as the lease lasts on this host's clock.
                epoch = await self.epoch(queue)
                is_gone = epoch is None or lock_of(lease.slice) != epoch
                answers[ending.token] = is_gone and lease.until_ms > self._now_ms()
            if answers.get(ending.token, False):
                self._holds[ending.token] = _Hold(queue, ending, trio.current_time())
        return {ending.token: answers.get(ending.token, False) for ending in endings}

    async def recorded(self, queue: str, tokens: Sequence[int]) -> None:
        held = [self._holds.pop(token).ending for token in tokens if token in self._holds]
        if held and not self.is_away:
            # Slices that stay are compared with their rows when their lease has run out.
            try:
                await self.remote.end(queue, held)
            except StoreUnavailable as problem:
                self.lose(problem)

    def unrecorded(self, tokens: Sequence[int]) -> None:
        """The leases of these run out, and their items are lent again."""
        for token in tokens:
            self._holds.pop(token, None)

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        own = [token for token in tokens if token < OWN_BELOW]
        shared = [token for token in tokens if token >= OWN_BELOW]
        answers = dict(zip(own, await self.own.extend(queue, own, lease_s), strict=True))
        if shared:
            until_ms = self._now_ms() + round(lease_s * 1000)
            try:
                if self.is_away:
                    raise StoreUnavailable("the shared warm queue is away")
                extended = await self.remote.extend(queue, shared, lease_s)
            except StoreUnavailable as problem:
                self.lose(problem)
                extended = [token in self._leased for token in shared]
            else:
                for token, ok in zip(shared, extended, strict=True):
                    if ok and token in self._leased:
                        self._leased[token] = replace(self._leased[token], until_ms=until_ms)
            answers |= dict(zip(shared, extended, strict=True))
        return [answers[token] for token in tokens]

    async def expire(self) -> dict[str, int]:
        now_ms = self._now_ms()
        for token in [token for token, one in self._leased.items() if one.until_ms <= now_ms]:
            del self._leased[token]
        found = dict(await self.own.expire())
        if not self.is_away:
            try:
                for queue, items in (await self.remote.expire()).items():
                    found[queue] = found.get(queue, 0) + items
            except StoreUnavailable as problem:
                self.lose(problem)
        return found

    async def withdraw(
        self,
        queue: str,
        flow: str | None = None,
        positions: range | None = None,
        run_id: bytes | None = None,
    ) -> list[Slice]:
        which = (queue, flow, positions, run_id)
        slices = await self.own.withdraw(*which)
        if not self.is_away:
            try:
                slices += await self._unsettled(await self.remote.withdraw(*which))
            except StoreUnavailable as problem:
                self.lose(problem)
        return slices

    async def _unsettled(self, slices: Sequence[Slice]) -> list[Slice]:
        """Without items that were settled by a daemon that could not take them out."""
        if not slices:
            return []
        left = await self.rows.left(lock_of(slices[0]), [row_of(slice_) for slice_ in slices])
        parts = [replace(s, bits=s.bits & left.get(row_of(s), 0)) for s in slices]
        return [part for part in parts if part.bits]

    async def locate(self, queue: str, run_ids: frozenset[bytes]) -> Mapping[bytes, Whereabouts]:
        found = dict(await self.own.locate(queue, run_ids))
        if not self.is_away:
            try:
                shared = await self.remote.locate(queue, run_ids)
            except StoreUnavailable as problem:
                self.lose(problem)
            else:
                found |= {run_id: seen for run_id, seen in shared.items() if run_id not in found}
        return found

    async def wait(self, queue: str) -> None:
        await self._wait_for(queue, "wait")

    async def wait_change(self, queue: str) -> None:
        try:
            await self._wait_for(queue, "wait_change")
        finally:
            self._fills.pop(queue, None)

    async def _wait_for(self, queue: str, what: str) -> None:
        changed = self._changed

        async def wait_for_own() -> None:
            await getattr(self.own, what)(queue)

        async def wait_for_remote() -> None:
            try:
                await getattr(self.remote, what)(queue)
            except StoreUnavailable as problem:
                self.lose(problem)

        waits = [wait_for_own, changed.wait]
        if not (self.is_away or self._is_behind):
            waits.append(wait_for_remote)
        else:
            waits.append(_wait_away)
        await first_of(*waits)

    async def fill(self, queue: str) -> Fill:
        own = await self.own.fill(queue)
        if not self.is_away:
            try:
                return total(own, await self._fill(queue))
            except StoreUnavailable as problem:
                self.lose(problem)
        return own

    async def _fill(self, queue: str) -> Fill:
        now = trio.current_time()
        at, fill = self._fills.get(queue, (0.0, Fill()))
        if now - at > FILL_S:
            fill = await self.remote.fill(queue)
            self._fills[queue] = now, fill
        return fill

    async def fills(self) -> Mapping[str, Fill]:
        found = dict(await self.own.fills())
        if not self.is_away:
            try:
                for queue, fill in (await self.remote.fills()).items():
                    found[queue] = total(found.get(queue, Fill()), fill)
            except StoreUnavailable as problem:
                self.lose(problem)
        return found

    async def flows(self) -> Sequence[WarmFlow]:
        found = list(await self.own.flows())
        if not self.is_away:
            try:
                found += await self.remote.flows()
            except StoreUnavailable as problem:
                self.lose(problem)
        return found


async def _wait_away() -> None:
    await trio.sleep(AWAY_S)


def is_untried(lease: Leased | None, ending: Ending) -> bool:
    """Whether all items of a lease are given back, so that there is nothing to record."""
    if lease is None:
        return False
    bits = 0
    for slice_ in ending.again:
        bits |= slice_.bits
    return bits == lease.slice.bits


def row_of(slice_: Slice) -> bytes:
    owner = slice_.run.owner
    assert isinstance(owner, InCold)
    return owner.row


def slice_of_row(new: NewRow, epoch: bytes) -> Slice:
    """Items that were handed over, as a slice of their row."""
    run = LentRun(new.head, new.data, InCold(new.row, epoch))
    return Slice(run, new.bits, new.attempt, new.due_ms, new.errors)
