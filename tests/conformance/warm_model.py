"""A simple model of a warm queue: slices in a list, sorted when asked, counted item by item."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from actors.model.slices import InCold, Slice, indexes
from actors.ports.tiers import Entered, Fill, Limits

QUEUES: Final = ("a", "b")


@dataclass
class Held:
    slice: Slice
    token: int | None = None
    until_ms: int = 0
    """On the clock of leases."""


class Model:
    def __init__(self, bytes_max: int | None = None) -> None:
        self.bytes_max = bytes_max
        self.queues: dict[str, list[Held]] = {queue: [] for queue in QUEUES}

    def enter(self, queue: str, slices: Sequence[Slice], limits: Limits, now_ms: int) -> Entered:
        rest: list[Slice] = []
        for slice_ in slices:
            entering = staying = 0
            for index in indexes(slice_.bits):
                trial = replace(slice_, bits=entering | 1 << index)
                if not rest and not staying and self._has_room(queue, trial, limits):
                    entering = trial.bits
                else:
                    staying |= 1 << index
            if entering:
                self.queues[queue].append(Held(replace(slice_, bits=entering)))
            if staying:
                rest.append(replace(slice_, bits=staying))
        return Entered(rest, self.fill(queue, now_ms))

    def _has_room(self, queue: str, coming: Slice, limits: Limits) -> bool:
        held = self.queues[queue]
        items = sum(each.slice.items for each in held) + coming.items
        if items > limits.items:
            return False
        if items == 1:
            return True
        size = sum(each.slice.bytes for each in held) + coming.bytes
        total = sum(each.slice.bytes for queue in QUEUES for each in self.queues[queue])
        is_capped = self.bytes_max is not None and total + coming.bytes > self.bytes_max
        return size <= limits.bytes and not is_capped

    def lease(
        self, queue: str, items_max: int, bytes_max: int, without: frozenset[str], now_ms: int
    ) -> list[Held]:
        """The leases still lack their tokens and times."""
        held = self.queues[queue]
        leased: list[Held] = []
        for each in sorted(held, key=lambda each: each.slice.sort_key):
            slice_ = each.slice
            if each.token or slice_.due_ms > now_ms or slice_.run.head.flow in without:
                continue
            taken = 0
            for index in indexes(slice_.bits):
                trial = replace(slice_, bits=taken | 1 << index)
                items = sum(other.slice.items for other in leased) + trial.items
                size = sum(other.slice.bytes for other in leased) + trial.bytes
                if items > 1 and (items > items_max or size > bytes_max):
                    break
                taken = trial.bits
            if taken:
                held.remove(each)
                leased.append(Held(replace(slice_, bits=taken)))
                held.append(leased[-1])
            if taken != slice_.bits:
                rest = replace(slice_, bits=slice_.bits & ~taken)
                if taken:
                    held.append(Held(rest))
                break
        return leased

    def find(self, queue: str, token: int) -> Held | None:
        return next((each for each in self.queues[queue] if each.token == token), None)

    def end(self, queue: str, token: int, again: Sequence[Slice]) -> None:
        held = self.queues[queue]
        held[:] = [each for each in held if each.token != token]
        held.extend(Held(slice_) for slice_ in again)

    def expire(self, steady_ms: int) -> dict[str, int]:
        expired: dict[str, int] = {}
        for queue, held in self.queues.items():
            for each in held:
                if each.token is not None and each.until_ms <= steady_ms:
                    each.token = None
                    expired[queue] = expired.get(queue, 0) + each.slice.items
        return expired

    def withdraw(self, queue: str, flow: str | None, positions: range | None) -> list[Slice]:
        def goes(each: Held) -> bool:
            run = each.slice.run
            position = None if isinstance(run.owner, InCold) else run.owner.position
            return (
                each.token is None
                and flow in (None, run.head.flow)
                and (positions is None or (position is not None and position in positions))
            )

        held = self.queues[queue]
        gone = [each.slice for each in held if goes(each)]
        held[:] = [each for each in held if not goes(each)]
        return sorted(gone, key=lambda slice_: slice_.sort_key)

    def fill(self, queue: str, now_ms: int) -> Fill:
        fill = Fill()
        for each in self.queues[queue]:
            items = each.slice.items
            is_leased = each.token is not None
            fill = Fill(
                fill.items + items,
                fill.bytes + each.slice.bytes,
                fill.scheduled + items * (not is_leased and each.slice.due_ms > now_ms),
                fill.leased + items * is_leased,
                fill.cold_items + items * isinstance(each.slice.run.owner, InCold),
            )
        return fill
