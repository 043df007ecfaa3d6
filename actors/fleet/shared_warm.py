"""Warm that a fleet shares, and this process's own warm queue for when it is away.

The way of work: everything goes to the shared queue, and is leased from there by any daemon. When a
step of it fails, the queue counts as away: from that moment what is new enters this process's own
queue, and is leased from it. What was entered into the shared queue before stays lent out
(actors/fleet/entered.py) until the owner actor knows that nobody else can take it
(actors/fleet/owner.py), which also notices that the queue is back. What is in the own queue then is
leased before anything else, until it is empty.

An outcome that cannot be told, since the queue went away meanwhile, counts if its lease has not
run out by this host's clock: for runs of this daemon's journal and rows of the cold store, whose
owners are told by themselves. The shared queue is told when it is back (`untold`), and only then
does another daemon hear of its runs; what it refuses then is stale.

When the queue has forgotten everything, what this daemon's workers have in hand is not entered
again, and its outcome counts as long as its lease would have lasted.

It owns nothing. Cancellation is as the port says. A lease of the own queue is known by its token,
which is a small number.
"""

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final

import structlog
import trio

from actors.fleet.entered import LentOut
from actors.model.clock import Clock
from actors.model.slices import Abroad, InCold, InJournal, Slice
from actors.ports.fleet import RemoteWarm
from actors.ports.tiers import (
    Ending,
    Entered,
    Fill,
    Leased,
    Limits,
    StoreUnavailable,
    WarmFlow,
    WarmQueue,
    Whereabouts,
)


async def first_of(*waits: Callable[[], Awaitable[None]] | None) -> None:
    """Returns when one of these does."""
    async with trio.open_nursery() as nursery:

        async def first(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            if wait is not None:
                nursery.start_soon(first, wait)


log = structlog.get_logger()

UNTOLD_MAX: Final = 1000
"""Outcomes that wait to be told; the oldest are let go, and their leases run out."""
OWN_BELOW: Final = 1 << 56
"""Tokens of this process's own queue, which counts them; the shared queue's begin with a byte that
is not 0."""
FILL_S: Final = 0.05
"""So long what the queue said last of how full it is will do. It keeps its limits itself, whatever
is believed here; a look before every step took a third of all commands."""
NO_LIMITS: Final = Limits(sys.maxsize, sys.maxsize)


@dataclass(frozen=True, slots=True)
class Untold:
    queue: str
    ending: Ending


class SharedWarm:
    def __init__(self, remote: RemoteWarm, own: WarmQueue, valid_s: float, now_ms: Clock) -> None:
        """`valid_s`: for how long others may lease what is entered, until it is said again."""
        self.valid_s = valid_s
        self.valid_until = 0.0
        """In trio's time: from then on nobody takes this daemon's slices any more."""
        self._valid_queues: set[str] = set()
        self.remote = remote
        self.own = own
        self.out = LentOut()
        self.untold: deque[Untold] = deque(maxlen=UNTOLD_MAX)
        self.is_away = False
        self.away_total = 0
        """How often it went away."""
        self.stale_total = 0
        """Leases on items that this daemon knows to be done."""
        self._now_ms = now_ms
        self._leased: dict[int, tuple[str, Leased]] = {}
        self._fills: dict[str, tuple[float, Fill]] = {}
        """When it was said, and what."""
        self._orphans: set[int] = set()
        """Tokens of leases that were out when the queue forgot everything."""
        self._under_way: dict[int, tuple[str, Sequence[Slice]]] = {}
        """Steps with the queue that have not been answered, and what they are about."""
        self._steps = count()
        self.withdrawals = self.withdrawing = 0
        """How often something was taken out, and how often that is under way."""
        self._changed = trio.Event()

    # Whether it is there.

    def lose(self, problem: StoreUnavailable) -> None:
        if not self.is_away:
            self.is_away = True
            self.away_total += 1
            self._valid_queues = set()
            log.error("warm.away", error=str(problem))
            self._tell_all()

    def regain(self) -> None:
        if self.is_away:
            self.is_away = False
            log.info("warm.back")
            self._tell_all()

    def _tell_all(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def keep_valid(self, queues: Sequence[str]) -> None:
        """Others may lease what this daemon has in these queues, for `valid_s` more."""
        until = trio.current_time() + self.valid_s
        # Before the answer: it may be so although none comes.
        self.valid_until = max(self.valid_until, until)
        await self.remote.keep_valid(queues, self.valid_s)
        self._valid_queues = self._valid_queues.union(queues)
        for queue in self.out.row_queues:
            await self.remote.keep_rows_valid(queue, self.out.locks(queue), self.valid_s)

    def rows_in_hand(self) -> set[bytes]:
        """Rows of the cold store of which this daemon's workers have leased something, or which
        are on their way to the queue or from it."""
        owners = [slice_.run.owner for _, slice_ in self._busy()]
        return {owner.row for owner in owners if isinstance(owner, InCold)}

    def in_hand(self, queue: str) -> dict[int, int]:
        """The same of this daemon's runs: bits, by position."""
        found: dict[int, int] = {}
        for at, slice_ in self._busy():
            if at == queue and isinstance(slice_.run.owner, InJournal):
                position = slice_.run.owner.position
                found[position] = found.get(position, 0) | slice_.bits
        return found

    def _busy(self) -> Iterator[tuple[str, Slice]]:
        now_ms = self._now_ms()
        for token, (queue, leased) in list(self._leased.items()):
            if leased.until_ms <= now_ms:
                del self._leased[token]
                self._orphans.discard(token)
            else:
                yield queue, leased.slice
        for queue, slices in self._under_way.values():
            for slice_ in slices:
                yield queue, slice_

    def has_forgotten(self) -> None:
        """The queue has lost its memory: nobody there knows of leases that are out."""
        self.untold.clear()
        self._orphans.update(self._leased)

    @contextmanager
    def moving(self, queue: str, slices: Sequence[Slice]) -> Iterator[None]:
        """While a step is under way nobody can say whether these are in the queue."""
        step = next(self._steps)
        self._under_way[step] = queue, slices
        try:
            yield
        finally:
            del self._under_way[step]

    # The port.

    async def enter(self, queue: str, slices: Sequence[Slice], limits: Limits) -> Entered:
        if self.is_away or not slices:
            return await self.own.enter(queue, slices, limits)
        # Before anybody can lease them, and say what became of them. Rows are valid from then on.
        self.out.add(queue, slices)
        self.valid_until = max(self.valid_until, trio.current_time() + self.valid_s)
        try:
            with self.moving(queue, slices):
                if queue not in self._valid_queues:
                    await self.keep_valid([queue])
                entered = await self.remote.enter(queue, slices, limits)
        except StoreUnavailable as problem:
            # They may be there: they are treated as if they were.
            self.lose(problem)
            return Entered([], await self.fill(queue))
        for slice_ in entered.rest:
            self.out.gone(queue, slice_)
        self._fills[queue] = trio.current_time(), entered.fill
        return entered

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
        if own or self.is_away:
            return own
        try:
            return await self._known(queue, await self.remote.lease(*wanted))
        except StoreUnavailable as problem:
            self.lose(problem)
            return []

    async def _known(self, queue: str, found: list[Leased]) -> list[Leased]:
        """What was leased, this daemon's runs as it knows them. What it knows to be done is taken
        out instead of being delivered."""
        known: list[Leased] = []
        done: list[Ending] = []
        for leased in found:
            mine: Slice | None = leased.slice
            if isinstance(leased.slice.run.owner, InJournal):
                mine = self.out.own(queue, leased.slice)
                if mine is None or mine.bits != leased.slice.bits:
                    done.append(Ending(leased.token, () if mine is None else (mine,)))
                    continue
            assert mine is not None
            known.append(replace(leased, slice=mine))
            self._leased[leased.token] = queue, known[-1]
        if done:
            self.stale_total += len(done)
            await self.remote.end(queue, done)
        return known

    async def end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        own = [ending for ending in endings if ending.token < OWN_BELOW]
        shared = [ending for ending in endings if ending.token >= OWN_BELOW]
        if not shared:
            return await self.own.end(queue, own)
        answers = dict(zip((e.token for e in own), await self.own.end(queue, own), strict=True))
        told = await self._end(queue, shared)
        answers |= dict(zip((e.token for e in shared), told, strict=True))
        return [answers[ending.token] for ending in endings]

    async def _end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        leases = [self._leased.get(ending.token) for ending in endings]
        try:
            if self.is_away:
                raise StoreUnavailable("the shared warm queue is away")
            answers = await self.remote.end(queue, endings)
        except StoreUnavailable as problem:
            self.lose(problem)
            answers = [self._lasts(known) for known in leases]
            self.untold += (
                Untold(queue, ending)
                for ending, counts in zip(endings, answers, strict=True)
                if counts
            )
        again: list[Slice] = []
        for at, (ending, known) in enumerate(zip(endings, leases, strict=True)):
            self._leased.pop(ending.token, None)
            if known is None or isinstance(known[1].slice.run.owner, Abroad):
                continue
            if not answers[at] and ending.token in self._orphans and self._lasts(known):
                # Nobody else has it: what is in hand was not entered again.
                answers[at] = True
                again += ending.again
            if answers[at]:
                self.out.gone(queue, known[1].slice, ending.again)
            self._orphans.discard(ending.token)
        if again:
            await self.enter(queue, again, NO_LIMITS)
        return answers

    def _lasts(self, known: tuple[str, Leased] | None) -> bool:
        return known is not None and known[1].until_ms > self._now_ms()

    async def tell_untold(self) -> None:
        """What was concluded while the queue was away. StoreUnavailable: it still is."""
        while self.untold:
            queue, ending = self.untold[0].queue, self.untold[0].ending
            (is_known,) = await self.remote.end(queue, [ending])
            if not is_known:
                self.stale_total += 1
            self.untold.popleft()

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        own = [token for token in tokens if token < OWN_BELOW]
        shared = [token for token in tokens if token >= OWN_BELOW]
        kept = await self.own.extend(queue, own, lease_s)
        answers = dict(zip(own, kept, strict=True))
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
                        leased = replace(self._leased[token][1], until_ms=until_ms)
                        self._leased[token] = queue, leased
            answers |= dict(zip(shared, extended, strict=True))
        return [answers[token] for token in tokens]

    async def expire(self) -> dict[str, int]:
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
            self.withdrawals += 1
            self.withdrawing += 1
            try:
                slices += self._taken(queue, await self.remote.withdraw(*which))
            except StoreUnavailable as problem:
                self.lose(problem)
            finally:
                self.withdrawing -= 1
        return slices

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

    def _taken(self, queue: str, taken: Sequence[Slice]) -> list[Slice]:
        """What was taken out of the shared queue, as far as there is still something to do."""
        found: list[Slice] = []
        for slice_ in taken:
            mine: Slice | None = slice_
            if isinstance(slice_.run.owner, InJournal):
                mine = self.out.own(queue, slice_)
                self.out.gone(queue, slice_)
            if mine is not None:
                found.append(mine)
        return found

    # Waiting.

    async def wait(self, queue: str) -> None:
        changed = self._changed
        remote = None if self.is_away else partial(self._wait, self.remote.wait, queue)
        await first_of(partial(self.own.wait, queue), changed.wait, remote)

    async def wait_change(self, queue: str) -> None:
        changed = self._changed
        remote = None if self.is_away else partial(self._wait, self.remote.wait_change, queue)
        try:
            await first_of(partial(self.own.wait_change, queue), changed.wait, remote)
        finally:
            self._fills.pop(queue, None)

    async def _wait(self, wait: Callable[[str], Awaitable[None]], queue: str) -> None:
        try:
            await wait(queue)
        except StoreUnavailable as problem:
            self.lose(problem)

    # How full it is.

    def forget_locks(self, locks: Collection[bytes]) -> None:
        self.out.forget_locks(locks)

    async def fill(self, queue: str) -> Fill:
        own = await self.own.fill(queue)
        if not self.is_away:
            try:
                return total(own, await self._fill(queue))
            except StoreUnavailable as problem:
                self.lose(problem)
        return total(own, self._lent_out(queue))

    async def _fill(self, queue: str) -> Fill:
        now = trio.current_time()
        at, fill = self._fills.get(queue, (0.0, Fill()))
        if now - at > FILL_S:
            fill = await self.remote.fill(queue)
            self._fills[queue] = now, fill
        return fill

    async def fills(self) -> Mapping[str, Fill]:
        found = dict(await self.own.fills())
        shared: Mapping[str, Fill] = {}
        if not self.is_away:
            try:
                shared = await self.remote.fills()
            except StoreUnavailable as problem:
                self.lose(problem)
        if self.is_away:
            shared = {queue: self._lent_out(queue) for queue in self.out.queues}
        return found | {q: total(found.get(q, Fill()), fill) for q, fill in shared.items()}

    async def flows(self) -> Sequence[WarmFlow]:
        found = list(await self.own.flows())
        if not self.is_away:
            try:
                found += await self.remote.flows()
            except StoreUnavailable as problem:
                self.lose(problem)
        return found

    def _lent_out(self, queue: str) -> Fill:
        """What nobody can say more of just now, and somebody may have in hand."""
        items = self.out.items_out(queue)
        return Fill(items, self.out.bytes_out(queue), leased=items)


def total(one: Fill, other: Fill) -> Fill:
    return Fill(
        one.items + other.items,
        one.bytes + other.bytes,
        one.scheduled + other.scheduled,
        one.leased + other.leased,
        one.cold_items + other.cold_items,
    )
