"""Concludes the reports of consumers as those of workers: retries, dead letters, results."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from trio import to_thread

from actors.config.queue import QueueSettings
from actors.model.outcomes import Conclusion, ItemsFailed, Report
from actors.workers.consumer_reports import Ended
from actors.workers.retry import conclude, takes_long
from actors.workers.settlement import Settlement


class PullSettling:
    def __init__(
        self,
        settlement: Settlement,
        queue_settings: Callable[[str], QueueSettings],
        now_ms: Callable[[], int],
    ) -> None:
        self._settlement = settlement
        self._queue_settings = queue_settings
        self._now_ms = now_ms

    async def settle(self, queue: str, ended: Sequence[Ended]) -> list[bool]:
        settings, now_ms = self._queue_settings(queue), self._now_ms()
        if takes_long(sum(len(one.failed) for one in ended), settings):
            conclusions = await to_thread.run_sync(conclude_all, ended, settings, now_ms)
        else:
            conclusions = conclude_all(ended, settings, now_ms)
        return await self._settlement.settle(queue, [one.leased for one in ended], conclusions)


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
