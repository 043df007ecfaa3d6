"""A real warm queue to lease from, and a `Settling` that ends leases in it and takes notes."""

from collections.abc import Sequence
from dataclasses import replace

import trio

from actors.config.queue import QueueSettings
from actors.model.slices import InJournal, LentRun, Slice, item_bits
from actors.observers.tallies import Tallies
from actors.ports.tiers import Ending, Leased, Limits, StoreUnavailable
from actors.tiers.warm import MemoryWarm
from actors.workers.pull import Pull
from actors.workers.pull_reports import Ended
from actors.workers.recording import Recording
from forebay import lease_frames, wire
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish, Part, What
from forebay.run import encode_run, read_head
from forebay.wire import Kind
from tests.wire.harness import RawClient

NOW_MS = 1_755_000_000_000
ROOMY = Limits(10**9, 2**40)


class Lending:
    """Runs in warm, and what consumers have said about them."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms
        self.warm = MemoryWarm(now_ms=lambda: self.now_ms)
        self.settings: QueueSettings | None = QueueSettings()
        self.paused: frozenset[str] | None = frozenset()
        self.tallies = Tallies()
        self.pull = Pull(
            self.warm,
            self,
            self,
            self.tallies,
            lambda: self.now_ms,
        )
        self.ended: list[Ended] = []
        self.is_away = False
        self.away_for = 0
        """So many reports find nobody."""
        self.asked = 0
        """How often somebody wanted to know how the queue is to be treated."""
        self.was_asked = trio.Event()

    def except_flows(self, _: str) -> frozenset[str] | None:
        return self.paused

    def queue(self, name: str) -> QueueSettings | None:
        self.asked += 1
        self.was_asked.set()
        self.was_asked = trio.Event()
        return self.settings

    async def settle(self, queue: str, ended: Sequence[Ended]) -> list[Recording]:
        """Released and failed items go back to warm, failed ones with an attempt more."""
        if self.is_away or self.away_for:
            self.away_for = max(self.away_for - 1, 0)
            raise StoreUnavailable("the store is away")
        held = await self.warm.end(queue, [_ending(one) for one in ended])
        self.ended += [one for one, is_held in zip(ended, held, strict=True) if is_held]
        return [Recording(one.leased, is_held) for one, is_held in zip(ended, held, strict=True)]

    async def enter(self, run: bytes, bits: int | None = None, attempt: int = 0) -> Slice:
        head = read_head(run)
        lent = LentRun(head, run, InJournal(1, 0))
        slice_ = Slice(lent, item_bits(0, head.count) if bits is None else bits, attempt)
        entered = await self.warm.enter(head.queue, [slice_], ROOMY)
        assert entered.rest == []
        return slice_

    async def enter_items(self, *payloads: bytes, queue: str = "crm", flow: str = "") -> Slice:
        return await self.enter(encode_run(payloads, queue=queue, flow=flow, compressed=False))

    async def counts(self, queue: str = "crm") -> tuple[int, int]:
        """Waiting and leased items."""
        fill = await self.warm.fill(queue)
        return fill.waiting, fill.leased

    async def expire(self, after_ms: int, queue: str = "crm") -> None:
        self.now_ms += after_ms
        await self.pull.end_late(queue)
        await self.warm.expire()


def _ending(ended: Ended) -> Ending:
    slice_ = ended.leased.slice
    again = [replace(slice_, bits=ended.released)] if ended.released else []
    again += [replace(slice_, bits=bits, attempt=slice_.attempt + 1) for bits, _ in ended.failed]
    return Ending(ended.leased.token, tuple(again))


async def lease(client: RawClient, sequence: int = 5, **wish: object) -> list[LeasedRun]:
    """Says LEASE and reads the LEASED."""
    await client.send(lease_frames.lease(sequence, LeaseWish(**{"queue": "crm", **wish})))  # type: ignore[arg-type]
    return await read_leased(client, sequence)


async def read_leased(client: RawClient, sequence: int = 5) -> list[LeasedRun]:
    kind, answered, body = await client.read()
    assert (kind, answered) == (Kind.LEASED, sequence), body
    return lease_frames.read_leased(body)


def settle_frame(sequence: int, *reports: LeaseReport, queue: str = "crm") -> bytes:
    return wire.frame(Kind.SETTLE, sequence, lease_frames.pack_settle(queue, reports))


def extend_frame(sequence: int, tokens: list[int], lease_ms: int, queue: str = "crm") -> bytes:
    return wire.frame(Kind.EXTEND, sequence, lease_frames.pack_extend(queue, lease_ms, tokens))


def all_delivered(leased: LeasedRun | Leased) -> LeaseReport:
    return LeaseReport(leased.token, (Part(What.DELIVERED),))
