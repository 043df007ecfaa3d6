"""A destination that does as the test says, and remembers what it was given, in order."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import trio

from actors.model.outcomes import Failure, ItemsFailed, Report
from actors.model.slices import Slice
from actors.ports.handler import DeliveryFailed, Pace, Prepared
from daemon.handlers.items import BatchColumns, UnpackedRuns, unpack_batch
from forebay.item import Item

Verdict = Callable[["Batch"], Report]
"""What becomes of a batch: a report, or DeliveryFailed is raised."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One send, as the destination sees it."""

    items: list[Item]
    places: list[tuple[int, int]]

    @property
    def ids(self) -> list[str]:
        return [item.id for item in self.items]


def all_good(_: Batch) -> Report:
    return Report()


def all_fail(failure: Failure) -> Verdict:
    """Nothing of the batch is taken, as if nobody answered."""

    def judge(_: Batch) -> Report:
        raise DeliveryFailed(failure)

    return judge


def items_fail(
    ids: Collection[str] | Callable[[Item], bool], failure: Failure | None = None
) -> Verdict:
    """These items are refused, the others are taken."""
    chosen = failure or Failure("refused", blames_destination=False)

    def judge(batch: Batch) -> Report:
        return Report(
            tuple(
                ItemsFailed(order, 1 << index, chosen)
                for item, (order, index) in zip(batch.items, batch.places, strict=True)
                if (ids(item) if callable(ids) else item.id in ids)
            )
        )

    return judge


@dataclass
class Destination:
    """What the senders of a queue talk to."""

    verdict: Verdict = all_good
    batches: list[Batch] = field(default_factory=list)
    """Every batch that was begun."""
    taken: Counter[str] = field(default_factory=Counter)
    """How often each item was taken; not those whose send was cancelled."""
    refused: Counter[str] = field(default_factory=Counter)
    inside: int = 0
    inside_max: int = 0
    is_patient: bool = False
    """Every send waits for `answer`."""
    _changed: trio.Event = field(default_factory=trio.Event)
    _waiting: list[tuple[Batch, trio.Event, list[Verdict]]] = field(default_factory=list)

    async def receive(self, batch: Batch) -> Report:
        self.batches.append(batch)
        self.inside += 1
        self.inside_max = max(self.inside, self.inside_max)
        self._tell()
        try:
            verdict = self.verdict
            if self.is_patient:
                told: list[Verdict] = []
                there = trio.Event()
                self._waiting.append((batch, there, told))
                try:
                    await there.wait()
                except trio.Cancelled:
                    self._waiting.remove((batch, there, told))
                    raise
                (verdict,) = told
            await trio.lowlevel.checkpoint()
            return self._judge(batch, verdict)
        finally:
            self.inside -= 1
            self._tell()

    def _judge(self, batch: Batch, verdict: Verdict) -> Report:
        try:
            report = verdict(batch)
        except DeliveryFailed:
            self.refused.update(batch.ids)
            raise
        refused = {
            item_id
            for item_id, (order, index) in zip(batch.ids, batch.places, strict=True)
            for failure in report.failures
            if failure.order == order and failure.bits >> index & 1
        }
        self.refused.update(refused)
        self.taken.update(item_id for item_id in batch.ids if item_id not in refused)
        return report

    def answer(self, verdict: Verdict = all_good, at: int = 0) -> None:
        """One send goes on, with this verdict: the one that has waited longest, or a later one."""
        _, there, told = self._waiting.pop(at)
        told.append(verdict)
        there.set()

    @property
    def items_waiting(self) -> int:
        """In sends that wait for `answer`."""
        return sum(len(batch.items) for batch, _, _ in self._waiting)

    def open_up(self, verdict: Verdict = all_good) -> None:
        """From now on everything is judged at once, what waits included."""
        self.is_patient = False
        self.verdict = verdict
        while self._waiting:
            self.answer(verdict)

    @property
    def ids(self) -> list[str]:
        """Of all items that were ever begun, in order."""
        return [item_id for batch in self.batches for item_id in batch.ids]

    def first_attempts(self) -> list[str]:
        """Each item once, in the order in which they were first tried."""
        return list(dict.fromkeys(self.ids))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that a send changes."""
        while not condition():
            await self._changed.wait()

    async def until_begun(self, batches: int) -> None:
        await self.until(lambda: len(self.batches) >= batches)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class ScriptedHandler:
    def __init__(
        self,
        destination: Destination,
        name: str,
        batch_items: int,
        timeout_s: float,
    ) -> None:
        self.destination = name
        self.batch_items = batch_items
        self.batch_bytes = 1 << 20
        self.timeout_s = timeout_s
        self._to = destination
        self._unpacked = UnpackedRuns()

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        columns = unpack_batch(batch, self._unpacked)
        return Prepared(batch, columns, columns.rejected)

    def open_sender(self, pace: Pace) -> "ScriptedSender":
        return ScriptedSender(self._to)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class ScriptedSender:
    def __init__(self, destination: Destination) -> None:
        self._to = destination

    async def send(self, prepared: Prepared) -> Report:
        columns: BatchColumns = prepared.content
        report = await self._to.receive(Batch(columns.items(), columns.places))
        return Report((*prepared.rejected, *report.failures))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
