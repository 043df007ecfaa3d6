"""Translates what consumers report about leases into items of the run. Pure functions."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

from trio import to_thread

from actors.config.catalogue import Catalogue
from actors.config.queue import QueueSettings
from actors.model.clock import Clock
from actors.model.outcomes import Conclusion, Failure, ItemsFailed, Report
from actors.model.slices import HeldBy, cut_text, indexes, ranges
from actors.ports.tiers import Leased
from actors.workers.recording import Recording
from actors.workers.retry import conclude, takes_long
from actors.workers.settlement import Settlement
from forebay.errors import BadFrame
from forebay.lease_frames import Part, What
from forebay.limits import SETTLE_TEXT_BYTES_MAX

RESULT_TEXT_MAX: Final = SETTLE_TEXT_BYTES_MAX
"""Characters of a result that are kept."""


class FailedPart(NamedTuple):
    bits: int
    """Items of the run."""
    failure: Failure


class Ended(NamedTuple):
    """The outcome of a lease: each item of its slice is in one of the three."""

    leased: Leased
    delivered: int
    failed: tuple[FailedPart, ...]
    released: int
    results: tuple[tuple[int, str], ...] = ()
    """Result texts of delivered items, as (bits of the run, text)."""
    holder: HeldBy | None = None


def what_became(leased: Leased, parts: Sequence[Part], holder: HeldBy | None = None) -> Ended:
    """The outcome that a consumer reports for its lease; items it does not name are released.

    Raises BadFrame if it names an item twice, or one that is not in the lease.
    """
    slice_ = leased.slice
    places = Places(slice_.bits)
    unnamed = (1 << slice_.items) - 1
    delivered = released = 0
    failed: list[FailedPart] = []
    results: list[tuple[int, str]] = []
    for part in parts:
        items = part.bits or unnamed
        if items & ~unnamed:
            raise BadFrame(f"lease {leased.token}: an item is named twice, or is not there")
        unnamed &= ~items
        bits = places.in_run(items)
        match part.what:
            case What.DELIVERED:
                delivered |= bits
                if part.text:
                    results.append((bits, cut_text(part.text, RESULT_TEXT_MAX)))
            case What.RELEASED:
                released |= bits
            case What.FAILED:
                if bits:
                    failed.append(FailedPart(bits, _failure(part)))
            case _:
                assert_never(part.what)
    released |= places.in_run(unnamed)
    return Ended(leased, delivered, tuple(failed), released, tuple(results), holder)


class Places:
    """Maps the items of a slice to their places in its run.

    Works by ranges of neighbours or item by item, whichever is less work: one error for each of
    2,048 items with gaps between them took 2.6 s by ranges alone.
    """

    __slots__ = ("_indexes", "_slice_bits", "_stretches")

    def __init__(self, slice_bits: int) -> None:
        self._slice_bits = slice_bits
        self._stretches = tuple(ranges(slice_bits))
        self._indexes: tuple[int, ...] = ()

    def in_run(self, items: int) -> int:
        """Items counted within the slice, as items of its run."""
        bits = at = 0
        if items.bit_count() >= len(self._stretches):
            for first, last in self._stretches:
                bits |= (items >> at & ((1 << last - first) - 1)) << first
                at += last - first
            return bits
        if not self._indexes:
            self._indexes = tuple(indexes(self._slice_bits))
        for item in indexes(items):
            bits |= 1 << self._indexes[item]
        return bits


def _failure(part: Part) -> Failure:
    return Failure(
        cut_text(part.text) or "the consumer gave no reason",
        retry_after_s=None if part.delay_ms is None else part.delay_ms / 1000,
        is_permanent=part.is_permanent,
        blames_destination=False,
        failure_reason=part.failure_reason,
    )


class PullSettling:
    """Concludes the reports of consumers as those of workers: retries, dead letters, results."""

    def __init__(
        self,
        settlement: Settlement,
        catalogue: Catalogue,
        now_ms: Clock,
    ) -> None:
        self._settlement = settlement
        self._catalogue = catalogue
        self._now_ms = now_ms

    async def settle(self, queue: str, ended: Sequence[Ended]) -> list[Recording]:
        settings, now_ms = self._catalogue.settings_of(queue), self._now_ms()
        if takes_long(sum(len(one.failed) for one in ended), settings):
            conclusions = await to_thread.run_sync(conclude_all, ended, settings, now_ms)
        else:
            conclusions = conclude_all(ended, settings, now_ms)
        leased = [one.leased for one in ended]
        if settings.settle_durability == "fsync":
            return await self._settlement.record(queue, leased, conclusions)
        answers = await self._settlement.settle(queue, leased, conclusions)
        return [Recording(one, is_held) for one, is_held in zip(leased, answers, strict=True)]


def conclude_all(ended: Sequence[Ended], settings: QueueSettings, now_ms: int) -> list[Conclusion]:
    return [conclude_pulled(one, settings, now_ms) for one in ended]


def conclude_pulled(ended: Ended, settings: QueueSettings, now_ms: int) -> Conclusion:
    """Released items are retried unchanged: no attempt is spent."""
    slice_ = ended.leased.slice
    tried = slice_.bits & ~ended.released
    conclusion = Conclusion(0)
    if tried:
        failures = tuple(ItemsFailed(0, bits, failure) for bits, failure in ended.failed)
        piece = replace(slice_, bits=tried)
        how = (settings, now_ms, random.random, ended.holder)
        (conclusion,) = conclude([piece], Report(failures), *how)
        conclusion = conclusion._replace(results=ended.results)
    if ended.released:
        untouched = replace(slice_, bits=ended.released)
        conclusion = conclusion._replace(again=(*conclusion.again, untouched))
    return conclusion
