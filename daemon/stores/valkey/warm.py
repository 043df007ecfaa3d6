"""Warm in Valkey: the shared queues of a fleet, from which all daemons dispatch.

Only rows of the cold store are here, with a copy of their runs' bytes; the row owns the state of
its items. A row is locked under the epoch of its queue as long as it is here. Every method is one
script, which is atomic and costs one command per batch of slices. Once begun, `enter`, `end` and
`withdraw` are completed within their deadline, so that the caller learns the outcome. Everything
else may be cancelled; a lease whose answer is lost expires.

After StoreUnavailable it is unknown whether the step was taken. Repeating `enter` is harmless:
items of a row that are there already are not entered twice. Repeating `end` returns False.

Leases and due times use the server's clock. The end of a lease is returned in this host's time,
computed before the call. A slice whose lease has expired waits again; the next lease of it says so
(`has_run_out`), because its items may be settled already.

What it cannot do: skip excluded flows for free (a lease looks at each of their slices, at about
1 µs, within the queue's limit of slices); withdraw more than 500 slices in one step; limit all
queues together (that is the server's own `maxmemory`).
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import trio

from actors.model.clock import Clock, wall_ms
from actors.model.slices import LentRun, Slice
from actors.ports.tiers import (
    Ending,
    Entered,
    Fill,
    Leased,
    Limits,
    StoreRefused,
    StoreUnavailable,
    WarmFlow,
    Whereabouts,
)
from daemon.stores.bridge import Bridge
from daemon.stores.valkey import keys
from daemon.stores.valkey.entries import (
    flow_mark,
    lease_mark,
    locked_under,
    pack_entry,
    pack_token,
    read_names,
    read_runs,
    row_of,
    run_key,
    unpack_bits,
    unpack_entry,
)
from daemon.stores.valkey.news import POLL_S, Mark
from daemon.stores.valkey.server import Argument, Script, Server, ValkeySettings
from daemon.stores.valkey.shared_queue import SharedQueues, millis

ENTER_SLICES: Final = 256
ENTER_BYTES: Final = 4 * 1024 * 1024
"""At most this much enters with one script; other scripts wait for it."""
NO_ROOM: Final = Limits(0, 0)
EXPIRE_LEASES: Final = 500
WITHDRAW_SLICES: Final = 500
WITHDRAW_BYTES: Final = 8 * 1024 * 1024
KNOWN_LEASES: Final = 65_536
"""If more leases expire without an end, the oldest are forgotten."""
KNOWN_RUNS: Final = 32
KNOWN_BYTES: Final = 16 * 1024 * 1024
PAGE: Final = 500
"""How many slices one script looks at."""


class ValkeyWarm(SharedQueues):
    def __init__(
        self,
        settings: ValkeySettings,
        bridge: Bridge,
        *,
        now_ms: Clock | None = None,
        flows_age_s: float = 5.0,
    ) -> None:
        super().__init__(Server(settings, bridge), now_ms)
        self._known: dict[str, _KnownRuns] = {}
        self._leased: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        """The marks of this daemon's leases, by queue and token: two queues may give the same
        token."""
        self._seen: dict[str, Mark] = {}
        """By queue, the latest arrival when a lease found nothing."""
        self._fell: dict[str, Mark] = {}
        """By queue, the latest departure when a caller last learned how full it is."""
        self._flows = FlowCounts(self._run, flows_age_s)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listens for news. Without it waiting tasks are woken a second late."""
        await self.news.run(task_status)

    async def close(self) -> None:
        await self._server.close()

    async def enter(
        self, queue: str, slices: Sequence[Slice], limits: Limits, before_ms: int | None = None
    ) -> Entered:
        """Enters slices of rows that are locked under the queue's epoch. Nothing enters, and
        StoreRefused is raised, if the server has forgotten that epoch or is full, or after
        `before_ms` on its clock: until then no other daemon may enter the same rows. If that
        happens between two portions of a large batch, the first ones have entered, and it is
        StoreUnavailable.

        Items that are there already are neither entered nor part of the rest."""
        if not all(slice_.bits for slice_ in slices):
            raise ValueError("a slice without items")
        if not slices:
            return Entered([], await self.fill(queue))
        if len({row_of(slice_.run).lock for slice_ in slices}) > 1:
            raise StoreRefused(f"Valkey: {queue}: the rows are locked under several epochs")
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            return await self._enter_all(queue, slices, limits, before_ms)
        raise AssertionError("nothing cancels it")

    async def _enter_all(
        self, queue: str, slices: Sequence[Slice], limits: Limits, before_ms: int | None
    ) -> Entered:
        rest: list[Slice] = []
        fill = Fill()
        for number, portion in enumerate(_portions(slices)):
            # What follows the rest does not overtake it.
            takes = (NO_ROOM, None) if rest else (limits, before_ms)
            try:
                left, fill = await self._enter(queue, portion, *takes)
            except StoreRefused as problem:
                if number == 0:
                    raise
                # Not refused as a whole: some of it has entered.
                raise StoreUnavailable(str(problem)) from problem
            rest += left
        return Entered(rest, fill)

    async def _enter(
        self, queue: str, slices: Sequence[Slice], limits: Limits, before_ms: int | None
    ) -> Entered:
        records: list[bytes] = []
        data: list[bytes] = []
        sent: set[bytes] = set()
        for slice_ in slices:
            records.append(pack_entry(slice_))
            key = run_key(slice_.run)
            data.append(b"" if key in sent or not limits.items else slice_.run.data)
            sent.add(key)
        found = await self._run(
            keys.ENTER,
            queue,
            limits.items,
            limits.bytes,
            row_of(slices[0].run).lock,
            "" if before_ms is None else before_ms,
            len(slices),
            *records,
            *data,
            shield=True,
        )
        if isinstance(found[1], bytes):
            raise StoreRefused(f"Valkey: {queue}: {found[1].decode()}")
        answer = self._answered(queue, found)
        self._note_fill(queue, answer.told.base, answer.told.fell)
        [left] = answer.more
        rest = [
            replace(slices[at], bits=unpack_bits(bits))
            for at, bits in zip(left[::2], left[1::2], strict=True)
        ]
        return Entered(rest, answer.fill)

    async def lease(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str] = frozenset(),
    ) -> list[Leased]:
        wanted = (queue, items_max, bytes_max, lease_s, except_flows)
        return [leased for leased, _ in await self.lease_rows(*wanted)]

    async def lease_rows(
        self,
        queue: str,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str],
    ) -> list[tuple[Leased, bool]]:
        """As `lease`; with each, whether an earlier lease of it has run out."""
        until_ms = (self._now_ms or wall_ms)() + millis(lease_s)
        known = self._known.setdefault(queue, _KnownRuns())
        offered = dict(known.runs)
        answer = await self._step(
            keys.LEASE,
            queue,
            items_max,
            bytes_max,
            millis(lease_s),
            b"".join(flow_mark(flow) for flow in except_flows),
            b"".join(offered),
        )
        records, pairs = answer.more
        if not records:
            self._seen[queue] = answer.told.base, answer.told.came
            return []
        runs = offered | read_runs(pairs, unpack_entry(records[0]).epoch)
        leased: list[tuple[Leased, bool]] = []
        for record in records:
            entry = unpack_entry(record)
            # A row that this daemon had under an epoch before may be here again.
            run = runs[entry.run_key] = locked_under(entry.epoch, runs[entry.run_key])
            one = Leased(entry.token, entry.as_slice(run), until_ms)
            leased.append((one, entry.has_run_out))
            known.keep(entry.run_key, run, entry.bits)
            self._leased[queue, entry.token] = lease_mark(record)
        while len(self._leased) > KNOWN_LEASES:
            self._leased.popitem(last=False)
        return leased

    async def wait(self, queue: str) -> None:
        """Returns when something has come, come back or come due since a lease found nothing."""
        await self.news.until(queue, "waits", self._seen.get(queue, (b"", 0)))

    async def wait_change(self, queue: str) -> None:
        """Returns when the queue has become emptier since a caller last learned how full it is; or
        after a second, since that may have been another caller."""
        after = self._fell.get(queue) or self.news.mark(queue, "changes")
        with trio.move_on_after(POLL_S):
            await self.news.until(queue, "changes", after)

    async def end(self, queue: str, endings: Sequence[Ending]) -> list[bool]:
        args: list[bytes | int] = [len(endings)]
        for token, again in endings:
            if not all(slice_.bits for slice_ in again):
                raise ValueError("items that are put back must have been leased, each once")
            args += (pack_token(token), self._leased.get((queue, token), b""), len(again))
            args += (pack_entry(slice_) for slice_ in again)
        found = await self._run(keys.END, queue, *args, shield=True)
        if isinstance(found[1], bytes):
            raise ValueError(found[1].decode())
        for ending in endings:
            self._leased.pop((queue, ending.token), None)
        return [bool(ended) for ended in self._answered(queue, found).more[0]]

    async def extend(self, queue: str, tokens: Sequence[int], lease_s: float) -> list[bool]:
        args: list[bytes] = []
        for token in tokens:
            args += (pack_token(token), self._leased.get((queue, token), b""))
        _, extended = await self._run(keys.EXTEND, queue, millis(lease_s), *args)
        return [bool(is_known) for is_known in extended]

    async def expire(self) -> dict[str, int]:
        """Expires leases of all daemons; any daemon may call it."""
        expired: dict[str, int] = {}
        queues = await self._queues()
        while queues:
            found = await self._run_each(keys.EXPIRE, queues, EXPIRE_LEASES)
            for queue, (_, items, _) in found.items():
                if items:
                    expired[queue] = expired.get(queue, 0) + items
            queues = [queue for queue in queues if found[queue][2] == EXPIRE_LEASES]
        return expired

    async def withdraw(
        self,
        queue: str,
        flow: str | None = None,
        positions: range | None = None,
        run_id: bytes | None = None,
    ) -> list[Slice]:
        """Nothing here has a position in a journal."""
        taken: list[Slice] = []
        if positions is not None:
            return taken
        await trio.lowlevel.checkpoint_if_cancelled()
        # What was taken so far is nowhere else now: from here on it ends with an answer.
        with trio.CancelScope(shield=True):
            start = b"-"
            try:
                while start:
                    start = await self._withdraw_page(queue, start, flow, run_id, taken)
            except StoreUnavailable:
                if not taken:
                    raise
        return sorted(taken, key=lambda slice_: slice_.sort_key)

    async def _withdraw_page(
        self,
        queue: str,
        start: bytes,
        flow: str | None,
        run_id: bytes | None,
        taken: list[Slice],
    ) -> bytes:
        """Where the next page begins; empty: this was the last."""
        answer = await self._step(
            keys.WITHDRAW,
            queue,
            start,
            b"" if flow is None else flow_mark(flow),
            run_id or b"",
            WITHDRAW_SLICES,
            WITHDRAW_BYTES,
        )
        records, pairs, last = answer.more
        if records:
            runs = read_runs(pairs, unpack_entry(records[0]).epoch)
            entries = map(unpack_entry, records)
            taken += (entry.as_slice(runs[entry.run_key]) for entry in entries)
        return b"(" + last if last else b""

    async def present(self, queue: str, rows: Sequence[bytes]) -> tuple[bytes, list[int]]:
        """The queue's epoch (empty: the server does not know the queue), and which items of each
        row are there, leased ones too."""
        epoch, found = await self._run(keys.PRESENT, queue, b"".join(rows))
        return epoch, [unpack_bits(bits) for bits in found]

    async def fill(self, queue: str) -> Fill:
        answer = await self._step(keys.LOOK, queue, "", 0)
        self._note_fill(queue, answer.told.base, answer.told.fell)
        return answer.fill

    async def fills(self) -> Mapping[str, Fill]:
        """Counts the slices of all daemons."""
        found = await self._run_each(keys.LOOK, await self._queues(), "", 0)
        fills = {queue: self._answered(queue, answer).fill for queue, answer in found.items()}
        return {queue: fill for queue, fill in fills.items() if fill.items}

    async def locate(self, queue: str, run_ids: frozenset[bytes]) -> Mapping[bytes, Whereabouts]:
        return await locate(self._run, queue, run_ids)

    async def flows(self) -> Sequence[WarmFlow]:
        return await self._flows.found(self._queues)

    def _note_fill(self, queue: str, base: bytes, fell: int) -> None:
        self._fell[queue] = base, fell


class _KnownRuns:
    """Runs whose bytes this daemon has received: further parts of them come without the bytes.

    Without this a run of 4,096 items, leased 100 at a time, would be sent 41 times as a whole.
    """

    def __init__(self) -> None:
        self.runs: OrderedDict[bytes, LentRun] = OrderedDict()
        self._bytes = 0

    def keep(self, key: bytes, run: LentRun, bits: int) -> None:
        if key in self.runs:
            self.runs[key] = run
            self.runs.move_to_end(key)
        elif bits.bit_count() < run.head.count and len(run.data) <= KNOWN_BYTES:
            self.runs[key] = run
            self._bytes += len(run.data)
            while len(self.runs) > KNOWN_RUNS or self._bytes > KNOWN_BYTES:
                _, old = self.runs.popitem(last=False)
                self._bytes -= len(old.data)


def _portions(slices: Sequence[Slice]) -> Iterator[Sequence[Slice]]:
    """Slices that enter with one script."""
    start = size = 0
    for at, slice_ in enumerate(slices):
        size += len(slice_.run.data)
        if at > start and (size > ENTER_BYTES or at - start == ENTER_SLICES):
            yield slices[start:at]
            start, size = at, len(slice_.run.data)
    yield slices[start:]


class Run(Protocol):
    async def __call__(
        self, script: Script, queue: str, *args: Argument, shield: bool = False
    ) -> list[Any]: ...


async def locate(run: Run, queue: str, run_ids: frozenset[bytes]) -> dict[bytes, Whereabouts]:
    """Looks at every slice of the queue; a slice that moves meanwhile may be missed."""
    places: dict[bytes, Whereabouts] = {}
    start = b"-"
    while True:
        _, found, last = await run(keys.LOCATE, queue, start, PAGE, b"".join(run_ids))
        for packed in found:
            run_id, where, bits = packed[:16], packed[16:17], unpack_bits(packed[17:])
            waiting, scheduled, leased = places.get(run_id, Whereabouts())
            places[run_id] = Whereabouts(
                waiting | (bits if where == b"w" else 0),
                scheduled | (bits if where == b"s" else 0),
                leased | (bits if where == b"l" else 0),
            )
        if not last:
            return places
        start = b"(" + last


class FlowCounts:
    """Counts the slices of the queues by flow and action.

    No counters are maintained for it: slices are read on request, one page at a time, and the
    result is cached for some seconds. Pages are read at different times, so it is approximate.
    """

    def __init__(self, run: Run, age_s: float) -> None:
        self._run = run
        self._age_s = age_s
        self._found: list[WarmFlow] = []
        self._stale_at: float | None = None

    async def found(self, queues: Callable[[], Awaitable[list[str]]]) -> list[WarmFlow]:
        now = trio.current_time()
        if self._stale_at is None or now >= self._stale_at:
            counted: list[WarmFlow] = []
            for queue in await queues():
                counted += await self._count(queue)
            self._found, self._stale_at = counted, now + self._age_s
        return self._found

    async def _count(self, queue: str) -> list[WarmFlow]:
        flows: dict[bytes, WarmFlow] = {}
        start = b"-"
        while True:
            _, counted, last = await self._run(keys.FLOWS, queue, start, PAGE)
            for names, waiting, from_cold, oldest_ms in counted:
                flow, action = read_names(names)
                before = flows.get(names, WarmFlow(queue, flow, action, 0, 0, None))
                ages = [age for age in (before.oldest_ms, oldest_ms) if age]
                flows[names] = before._replace(
                    waiting=before.waiting + waiting,
                    from_cold=before.from_cold + from_cold,
                    oldest_ms=min(ages, default=None),
                )
            if not last:
                return list(flows.values())
            start = b"(" + last
