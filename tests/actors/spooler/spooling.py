"""What the tests of the journal and the spooler share: settings, runs, and a running spooler."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from actors.config.settings import SpoolSettings
from actors.model.failures import RetryNote
from actors.model.runs import Fate
from actors.spooler.arrivals import Arrivals
from actors.spooler.messages import (
    Append,
    Finish,
    HandedOver,
    Inquire,
    Reply,
    Retried,
    RunLoan,
    Settle,
    Settled,
    Take,
)
from actors.spooler.spooler import Spooler
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from forebay.errors import Refused
from forebay.run import RunHead, encode_run, read_head
from forebay.wire import Outcome
from tests.eventually import eventually
from tests.rig.tiers_alone import make_catalogue

KIB = 1024
HANG_S = 600.0
"""So long a thread waits for its test at most: the test has failed by then."""


def spool_settings(**changes: Any) -> SpoolSettings:
    """Small chunks, so that a test sees several of them."""
    settings = {
        "chunk_size": 64 * KIB,
        "max_bytes": 64 * 1024 * KIB,
        "min_free_bytes": 0,
        "ballast_bytes": 64 * KIB,
        "spare_chunks": 1,
        "compression": "none",
    }
    return SpoolSettings.model_validate(settings | changes)


def make_run(
    queue: str = "q", items: int = 3, size: int = 100, **fields: Any
) -> tuple[RunHead, bytes]:
    payloads = [bytes([index % 256]) * size for index in range(items)]
    data = encode_run(payloads, queue=queue, compressed=False, **fields)
    return read_head(data), data


@dataclass
class Inbox:
    """The answers to one producer's pushes, as its connection would send them."""

    answers: dict[int, Outcome | Refused] = field(default_factory=dict)
    flushes: int = 0
    arrived: trio.Event = field(default_factory=trio.Event)

    def put(self, sequence: int, answer: Outcome | Refused) -> None:
        self.answers[sequence] = answer

    def flush(self) -> None:
        self.flushes += 1
        self.arrived.set()
        self.arrived = trio.Event()

    async def wait_for(self, count: int) -> None:
        while len(self.answers) < count:
            await self.arrived.wait()


class Roomy:
    """A budget without a limit."""

    def bytes_max(self) -> int:
        return 1 << 30

    def spend(self, size: int) -> None:
        """Nothing is counted."""


class Desk:
    """A running spooler and what one may ask of it."""

    def __init__(self, spooler: Spooler) -> None:
        self.client = spooler.client
        self.inbox = Inbox()
        self._sequence = 0

    async def submit(self, runs: Sequence[tuple[RunHead, bytes]]) -> list[int]:
        sequences = []
        for head, data in runs:
            self._sequence += 1
            sequences.append(self._sequence)
            await self.client.send(Append(head, data, self.inbox, self._sequence))
        return sequences

    async def push(self, *runs: tuple[RunHead, bytes]) -> list[Outcome | Refused]:
        sequences = await self.submit(runs)
        while not all(sequence in self.inbox.answers for sequence in sequences):
            await self.inbox.arrived.wait()
        return [self.inbox.answers[sequence] for sequence in sequences]

    async def take(self, queue: str = "q", runs_max: int = 100) -> list[RunLoan]:
        return (await self.client.ask(Take(queue, runs_max, Roomy()))).leases

    async def take_runs(self, runs: int, queue: str = "q") -> list[RunLoan]:
        """Takes until there are so many: what is on disk comes a stretch at a time."""
        leases: list[RunLoan] = []
        while len(leases) < runs:
            leases += await self.take(queue, runs - len(leases))
        return leases

    async def settle(self, *leases: RunLoan, fate: Fate = Fate.DELIVERED) -> None:
        outcomes = tuple(settled(lease, fate=fate) for lease in leases)
        await self.client.send(Settle(outcomes))

    async def record(self, *outcomes: Settled | Retried | HandedOver) -> list[bool]:
        """Settles, and waits until it is durable."""
        reply = Reply[list[bool]]()
        await self.client.send(Settle(outcomes, reply))
        return await reply.wait()

    async def stats(self) -> dict[str, Any]:
        report = await self.client.ask(Inquire())
        return dict(report)

    async def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Waits until it holds of the report, and returns that; not on a clock that stands."""

        async def check() -> dict[str, Any]:
            report = await self.stats()
            assert condition(report), report
            return report

        return await eventually(check)

    async def until_chunks(self, most: int) -> None:
        await self.until(lambda report: report["spool"]["chunks"] <= most)

    async def totals(self, queue: str = "q") -> dict[str, int]:
        totals: dict[str, int] = (await self.stats())["queues"].get(queue, {})
        return {name: count for name, count in totals.items() if count}


def settled(
    lease: RunLoan, first: int = 0, last: int | None = None, fate: Fate = Fate.DELIVERED
) -> Settled:
    head = lease.run.head
    last = head.count if last is None else last
    return Settled(lease.token, lease.run.position, head.run_id, first, last, fate)


def retried(lease: RunLoan, first: int, last: int, note: RetryNote) -> Retried:
    run = lease.run
    return Retried(lease.token, run.position, run.head.run_id, first, last, note)


def handed_over(lease: RunLoan, bits: int) -> HandedOver:
    return HandedOver(lease.token, lease.run.position, lease.run.head.run_id, bits)


@asynccontextmanager
async def running_spooler(
    directory: Path,
    files: Files | None = None,
    queues: dict[str, dict[str, Any]] | None = None,
    **changes: Any,
) -> AsyncIterator[Desk]:
    """A spooler on a real journal; finished in good order at the end."""
    settings = spool_settings(**changes)
    catalogue = make_catalogue(queues=queues or {})
    journal = Journal(files or Files(directory), settings)
    spooler = Spooler(settings, journal, catalogue, Arrivals(catalogue))
    async with trio.open_nursery() as nursery:
        await nursery.start(spooler.run)
        yield Desk(spooler)
        await spooler.client.send(Finish())
        await spooler.finished.wait()
