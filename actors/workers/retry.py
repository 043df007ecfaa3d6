"""What follows from a failure: a retry after a pause, or a dead letter; and a batch's conclusions.

Pure: time and chance are arguments. The conclusions balance whatever a report says: each item of
each slice is delivered, retried or dead, exactly one of them.

Items of a slice whose failures differ by even one letter become separate slices, so that each keeps
its own history. So a destination that words every refusal differently breaks runs up into single
items.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from actors.config.queue import BackoffSettings, QueueSettings, RetryRule
from actors.model.outcomes import (
    Conclusion,
    Dead,
    Failure,
    ItemResult,
    ItemsFailed,
    Report,
    Retry,
)
from actors.model.patterns import finds
from actors.model.slices import HeldBy, ItemError, Slice, remember
from forebay.limits import ATTEMPT_MAX

SEARCHES_MAX: Final = 4
"""Above this many pattern searches a thread concludes: one search may take 16 ms, and a consumer
may report thousands of different errors at once. A thread costs 0.1 ms."""
FAILURES_MAX: Final = 1000
"""Above this many different failures a thread concludes as well: each takes about 10 µs."""
RETRY_AFTER_MAX_S: Final = 86400.0
"""The longest pause a destination can ask for: a typing error must not park items."""


def conclude(
    batch: Sequence[Slice],
    report: Report | Failure,
    settings: QueueSettings,
    now_ms: int,
    random: Callable[[], float],
    holder: HeldBy | None = None,
) -> list[Conclusion]:
    """One conclusion per slice, in order.

    A failure applies to all items of the batch. Nonsense in a report is ignored: slices and items
    that do not exist, and items that were named before.
    """
    if isinstance(report, Failure):
        failed = {order: {report: piece.bits} for order, piece in enumerate(batch)}
    elif not (report.failures or report.untried or report.results):
        return [Conclusion(piece.bits, holder=holder) for piece in batch]
    else:
        failed = _failed(batch, report.failures)
    conclusions = [
        _conclude(piece, failed[order], settings, now_ms, random, holder)
        if order in failed
        else Conclusion(piece.bits, holder=holder)
        for order, piece in enumerate(batch)
    ]
    for order, bits in () if isinstance(report, Failure) else report.untried:
        conclusions[order] = _untried(batch[order], conclusions[order], bits)
    if isinstance(report, Report) and report.results:
        _add_results(conclusions, report.results)
    return conclusions


def takes_long(failures: int, settings: QueueSettings) -> bool:
    """Whether concluding this many failures should be done in a thread."""
    patterns = sum(bool(rule.error) for rule in settings.retry_rules)
    return failures > FAILURES_MAX or failures * patterns > SEARCHES_MAX


def decide(failure: Failure, attempt: int, settings: QueueSettings, random: float) -> Retry | Dead:
    """`attempt`: failed attempts, including this one. `random`: from 0 to 1, for the jitter.

    A matching rule decides, even for a permanent failure; without a rule a permanent failure is
    dead at once. A longer pause that the destination asks for is honoured.
    """
    rule = next((rule for rule in settings.retry_rules if _matches(rule, failure)), None)
    if rule is None and failure.is_permanent:
        return Dead("permanent")
    if rule is not None and rule.then == "dead":
        return Dead("rule")
    of_rule = None if rule is None else rule.max_retries
    if attempt > (settings.max_retries if of_rule is None else of_rule):
        return Dead("retries_spent")
    delay_s = None if rule is None else rule.delay
    if delay_s is None:
        delay_s = 0.0 if failure.has_waited else next_delay_s(settings.backoff, attempt, random)
    return Retry(max(delay_s, _asked_for_s(failure)))


def next_delay_s(backoff: BackoffSettings, attempt: int, random: float) -> float:
    """The pause after the `attempt`-th failure: `initial × multiplier^(attempt-1)`, at most `max`.

    `jitter` is the random share of the pause, and it only shortens: with 0.2 a pause of 5 s becomes
    4 to 5 s. So `max` holds, and items that failed together do not come back together.
    """
    if not backoff.enabled:
        return 0.0
    try:
        grown = backoff.initial * backoff.multiplier ** max(0, attempt - 1)
    except OverflowError:
        grown = math.inf
    return min(grown, backoff.max) * (1 - backoff.jitter * random)


def _failed(
    batch: Sequence[Slice], failures: Sequence[ItemsFailed]
) -> dict[int, dict[Failure, int]]:
    """Which items failed, per slice and failure; no item twice."""
    failed: dict[int, dict[Failure, int]] = {}
    left: dict[int, int] = {}
    for named in failures:
        if not 0 <= named.order < len(batch):
            continue
        rest = left.get(named.order)
        if rest is None:
            rest = batch[named.order].bits
        bits = named.bits & rest
        left[named.order] = rest & ~bits
        if bits:
            groups = failed.setdefault(named.order, {})
            groups[named.failure] = groups.get(named.failure, 0) | bits
    return failed


def _add_results(conclusions: list[Conclusion], results: Sequence[ItemResult]) -> None:
    found: dict[int, list[tuple[int, str]]] = {}
    for order, bits, text in results:
        found.setdefault(order, []).append((bits, text))
    for order, texts in found.items():
        conclusions[order] = conclusions[order]._replace(results=tuple(texts))


def _conclude(
    piece: Slice,
    failed: dict[Failure, int],
    settings: QueueSettings,
    now_ms: int,
    random: Callable[[], float],
    holder: HeldBy | None,
) -> Conclusion:
    delivered = piece.bits
    again: list[Slice] = []
    dead: list[Slice] = []
    # A run may arrive with the highest attempt number that fits into its field.
    attempt = min(piece.attempt + 1, ATTEMPT_MAX)
    for failure, bits in failed.items():
        delivered &= ~bits
        error = ItemError(attempt, now_ms, failure.text, failure.failure_reason, *(holder or ()))
        errors = remember(piece.errors, error)
        match decide(failure, attempt, settings, random()):
            case Retry(delay_s):
                due_ms = now_ms + math.ceil(delay_s * 1000)
                again.append(Slice(piece.run, bits, attempt, due_ms, errors))
            case Dead():
                dead.append(Slice(piece.run, bits, attempt, piece.due_ms, errors))
    return Conclusion(delivered, tuple(again), tuple(dead), holder)


def _untried(piece: Slice, conclusion: Conclusion, bits: int) -> Conclusion:
    """The same, but these items were not sent and come back unchanged."""
    bits &= conclusion.delivered
    if not bits:
        return conclusion
    return conclusion._replace(
        delivered=conclusion.delivered & ~bits,
        again=(*conclusion.again, replace(piece, bits=bits)),
    )


def _asked_for_s(failure: Failure) -> float:
    asked = failure.retry_after_s
    # NaN compares as false.
    return min(asked, RETRY_AFTER_MAX_S) if asked is not None and asked > 0 else 0.0


def _matches(rule: RetryRule, failure: Failure) -> bool:
    if rule.status and failure.status not in _statuses(rule.status):
        return False
    return not rule.error or finds(rule.error, failure.text)


@lru_cache(maxsize=1024)
def _statuses(patterns: tuple[str, ...]) -> frozenset[int]:
    """All status codes that match the patterns."""
    found: set[int] = set()
    for pattern in patterns:
        if pattern.endswith("xx"):
            hundred = int(pattern[0]) * 100
            found.update(range(hundred, hundred + 100))
        else:
            found.add(int(pattern))
    return frozenset(found)
