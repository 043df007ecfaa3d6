"""Backoff, retry rules, and the conclusion of a batch, whose books balance whatever it is told."""

import math
from functools import reduce
from operator import or_
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.config.queue import BackoffSettings, QueueSettings
from actors.model.outcomes import (
    Conclusion,
    Dead,
    Failure,
    ItemResult,
    ItemsFailed,
    Report,
    Retry,
)
from actors.model.slices import ERROR_TEXT_MAX, ERRORS_MAX, InJournal, ItemError, LentRun, Slice
from actors.workers.retry import RETRY_AFTER_MAX_S, conclude, decide, next_delay_s
from forebay.run import encode_run, read_head

NOW_MS = 1_700_000_000_000

DATA = encode_run([b"x"] * 64, queue="q", compressed=False)
RUN = LentRun(read_head(DATA), DATA, InJournal(1, 0))

DOWN = Failure("503 Service Unavailable", status=503)
REFUSED = Failure("no such customer", status=404, is_permanent=True, blames_destination=False)


def backoff(**changes: Any) -> BackoffSettings:
    given = {"initial": 5, "multiplier": 2.0, "max": 300, "jitter": 0.2}
    return BackoffSettings.model_validate(given | changes)


def queue(*rules: dict[str, Any], **changes: Any) -> QueueSettings:
    given = {"max_retries": 3, "retry_rules": rules, "backoff": {"jitter": 0}}
    return QueueSettings.model_validate(given | changes)


def middle() -> float:
    return 0.5


# Backoff.


@pytest.mark.parametrize(
    "attempt, delay_s", [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (65534, 300)]
)
def test_pauses_double_up_to_the_maximum(attempt: int, delay_s: float) -> None:
    assert next_delay_s(backoff(), attempt, 0.0) == delay_s


def test_jitter_is_a_share_that_only_shortens() -> None:
    assert next_delay_s(backoff(), 1, 1.0) == 4
    assert next_delay_s(backoff(), 100, 0.5) == 270
    assert next_delay_s(backoff(jitter=0), 2, 0.7) == 10
    assert next_delay_s(backoff(jitter=1), 2, 1.0) == 0


def test_without_backoff_it_is_tried_at_once() -> None:
    assert next_delay_s(backoff(enabled=False), 5, 0.3) == 0


@given(
    attempt=st.integers(1, 65534),
    random=st.floats(0, 1),
    initial=st.floats(0.001, 86400),
    multiplier=st.floats(1, 100),
    jitter=st.floats(0, 1),
)
def test_a_pause_is_never_above_the_maximum_nor_below_nothing(
    attempt: int, random: float, initial: float, multiplier: float, jitter: float
) -> None:
    settings = backoff(initial=initial, multiplier=multiplier, max=86400, jitter=jitter)
    assert 0 <= next_delay_s(settings, attempt, random) <= 86400
    assert next_delay_s(settings, attempt, 0) <= next_delay_s(settings, attempt + 1, 0)


# Decisions.


def test_what_was_out_of_sight_for_a_lease_comes_again_at_once() -> None:
    ran_out = Failure("the lease ran out", has_waited=True)
    assert decide(ran_out, 1, queue(), 0) == Retry(0)
    assert decide(ran_out, 1, queue({"error": "lease ran out", "delay": "1m"}), 0) == Retry(60)
    assert decide(ran_out, 4, queue(), 0) == Dead("retries_spent")


def test_attempts_are_spent_after_max_retries() -> None:
    assert decide(DOWN, 3, queue(), 0) == Retry(20)
    assert decide(DOWN, 4, queue(), 0) == Dead("retries_spent")
    assert decide(DOWN, 1, queue(max_retries=0), 0) == Dead("retries_spent")


def test_a_permanent_failure_is_dead_at_once_unless_a_rule_says_otherwise() -> None:
    assert decide(REFUSED, 1, queue(), 0) == Dead("permanent")
    assert decide(REFUSED, 1, queue({"status": ["404"], "delay": "1m"}), 0) == Retry(60)
    assert decide(REFUSED, 1, queue({"status": ["5xx"]}), 0) == Dead("permanent")


def test_a_rule_makes_a_failure_a_dead_letter() -> None:
    assert decide(DOWN, 1, queue({"error": "Service", "then": "dead"}), 0) == Dead("rule")


@pytest.mark.parametrize(
    "rule, status, text, holds",
    [
        ({"status": "404"}, 404, "", True),
        ({"status": 404}, 404, "", True),
        ({"status": "404"}, 405, "", False),
        ({"status": "404"}, None, "404", False),
        ({"status": "5xx"}, 500, "", True),
        ({"status": "5xx"}, 599, "", True),
        ({"status": "5xx"}, 600, "", False),
        ({"status": "5xx"}, 5, "", False),
        ({"status": ["429", "5XX"]}, 429, "", True),
        ({"status": "065"}, 65, "", True),
        ({"status": "9"}, -9, "", False),
        ({"error": "time.?out"}, None, "a timeout", True),
        ({"error": "time.?out"}, None, "a Timeout", False),
        ({"error": "^timeout"}, None, "a timeout", False),
        ({"status": "5xx", "error": "quota"}, 500, "quota", True),
        ({"status": "5xx", "error": "quota"}, 500, "other", False),
        ({"status": "5xx", "error": "quota"}, 400, "quota", False),
        ({}, None, "anything", True),
    ],
)
def test_rules_match_by_status_and_text(
    rule: dict[str, Any], status: int | None, text: str, holds: bool
) -> None:
    settings = queue(rule | {"then": "dead"})
    decided = decide(Failure(text, status=status), 1, settings, 0)
    assert (decided == Dead("rule")) == holds


def test_the_first_rule_that_matches_counts() -> None:
    rules = queue({"status": "503", "delay": "7s"}, {"status": "5xx", "then": "dead"})
    assert decide(DOWN, 1, rules, 0) == Retry(7)
    assert decide(Failure("", status=500), 1, rules, 0) == Dead("rule")


def test_a_rule_may_have_its_own_number_of_retries() -> None:
    more = queue({"status": "503", "max_retries": 10})
    assert isinstance(decide(DOWN, 10, more, 0), Retry)
    assert decide(DOWN, 11, more, 0) == Dead("retries_spent")
    none = queue({"status": "503", "max_retries": 0})
    assert decide(DOWN, 1, none, 0) == Dead("retries_spent")


@pytest.mark.parametrize(
    "asked_s, delay_s",
    [
        (None, 5),
        (3, 5),
        (90, 90),
        (-4, 5),
        (math.nan, 5),
        (math.inf, RETRY_AFTER_MAX_S),
        (10**9, RETRY_AFTER_MAX_S),
    ],
)
def test_the_longer_of_backoff_and_retry_after_counts(
    asked_s: float | None, delay_s: float
) -> None:
    assert decide(Failure("slow down", 429, asked_s), 1, queue(), 0) == Retry(delay_s)


def test_a_rule_that_says_at_once_still_keeps_a_pause_that_was_asked_for() -> None:
    rules = queue({"delay": "0s"})
    assert decide(Failure("slow down", 429, 9), 1, rules, 0) == Retry(9)
    assert decide(Failure("slow down", 429), 1, rules, 0) == Retry(0)


# Conclusions.


def test_an_empty_report_delivers_everything() -> None:
    batch = [Slice(RUN, 0b111), Slice(RUN, 0b1000)]
    assert conclude(batch, Report(), queue(), NOW_MS, middle) == [
        Conclusion(0b111),
        Conclusion(0b1000),
    ]


def test_a_failure_of_the_batch_is_one_of_every_item() -> None:
    fresh = Slice(RUN, 0b11)
    spent = Slice(RUN, 0b100, attempt=3, errors=(ItemError(3, 5, "before"),))
    first, second = conclude([fresh, spent], DOWN, queue(), NOW_MS, middle)
    (again,) = first.again
    assert (first.delivered, first.dead) == (0, ())
    assert (again.run, again.bits, again.attempt) == (RUN, 0b11, 1)
    assert again.due_ms == NOW_MS + 5000
    assert again.errors == (ItemError(1, NOW_MS, DOWN.text),)
    (dead,) = second.dead
    assert (second.delivered, second.again) == (0, ())
    assert (dead.bits, dead.attempt) == (0b100, 4)
    assert dead.errors == (ItemError(3, 5, "before"), ItemError(4, NOW_MS, DOWN.text))


def test_items_that_failed_the_same_way_stay_together() -> None:
    report = Report(
        (
            ItemsFailed(0, 0b0001, DOWN),
            ItemsFailed(0, 0b0010, REFUSED),
            ItemsFailed(0, 0b0100, Failure(DOWN.text, status=503)),
        )
    )
    (only,) = conclude([Slice(RUN, 0b1111)], report, queue(), NOW_MS, middle)
    assert only.delivered == 0b1000
    assert [again.bits for again in only.again] == [0b0101]
    assert [dead.bits for dead in only.dead] == [0b0010]


def test_the_odd_part_of_a_report_is_ignored_and_the_first_mention_counts() -> None:
    report = Report(
        (
            ItemsFailed(-1, 0b1, DOWN),
            ItemsFailed(-7, 0b1, DOWN),
            ItemsFailed(7, 0b1, DOWN),
            ItemsFailed(1, 0b11, REFUSED),
            ItemsFailed(1, 0b110, DOWN),
            ItemsFailed(1, 1 << 60, DOWN),
        )
    )
    first, second = conclude([Slice(RUN, 0b1), Slice(RUN, 0b1110)], report, queue(), 0, middle)
    assert first == Conclusion(0b1)
    assert second.delivered == 0b1000
    assert [dead.bits for dead in second.dead] == [0b10]
    assert [again.bits for again in second.again] == [0b100]


def test_an_item_comes_again_no_sooner_than_now() -> None:
    settings = queue(backoff={"enabled": False})
    (only,) = conclude([Slice(RUN, 1)], DOWN, settings, NOW_MS, middle)
    assert only.again[0].due_ms == NOW_MS


def test_the_history_of_errors_is_bounded() -> None:
    piece = Slice(RUN, 1)
    settings = queue(max_retries=1000)
    for _ in range(ERRORS_MAX + 5):
        (only,) = conclude([piece], Failure("x" * 9999), settings, NOW_MS, middle)
        (piece,) = only.again
    assert len(piece.errors) == ERRORS_MAX
    assert [piece.errors[0].attempt, piece.errors[-1].attempt] == [1, ERRORS_MAX + 5]
    assert len(piece.errors[0].text) == ERROR_TEXT_MAX


FAILURES = st.builds(
    Failure,
    text=st.sampled_from(["a", "b", "c"]),
    status=st.sampled_from([None, 404, 429, 503]),
    retry_after_s=st.sampled_from([None, 0.0, 100.0, math.nan]),
    is_permanent=st.booleans(),
)
BITS = st.one_of(st.integers(1, 15), st.integers(1, 2**64 - 1))
BATCHES = st.lists(st.builds(Slice, st.just(RUN), BITS, st.integers(0, 5)), min_size=1, max_size=4)
NAMED = st.builds(
    ItemsFailed,
    st.one_of(st.integers(0, 3), st.integers(-6, 6)),
    st.one_of(BITS, st.integers(-(2**70), 2**70)),
    FAILURES,
)
REPORTS = st.builds(Report, st.lists(NAMED, min_size=1, max_size=12).map(tuple))
SETTINGS = st.sampled_from(
    [queue(), queue({"status": "404"}), queue({"error": "b", "then": "dead"}, max_retries=0)]
)


@hypothesis.settings(max_examples=150)
@given(BATCHES, REPORTS, SETTINGS, st.floats(0, 1))
def test_every_item_has_exactly_one_end_whatever_the_report_says(
    batch: list[Slice], report: Report, settings: QueueSettings, random: float
) -> None:
    check_books(batch, conclude(batch, report, settings, NOW_MS, lambda: random))


@given(BATCHES, FAILURES, SETTINGS, st.floats(0, 1))
def test_every_item_of_a_batch_that_failed_has_exactly_one_end(
    batch: list[Slice], failure: Failure, settings: QueueSettings, random: float
) -> None:
    conclusions = conclude(batch, failure, settings, NOW_MS, lambda: random)
    check_books(batch, conclusions)
    assert not any(conclusion.delivered for conclusion in conclusions)


def check_books(batch: list[Slice], conclusions: list[Conclusion]) -> None:
    assert len(conclusions) == len(batch)
    for piece, (delivered, again, dead, *_) in zip(batch, conclusions, strict=True):
        parts = [delivered, *(part.bits for part in again + dead)]
        assert reduce(or_, parts) == piece.bits
        assert sum(part.bit_count() for part in parts) == piece.items
        for part in again + dead:
            assert part.bits
            assert part.run is piece.run
            assert part.attempt == piece.attempt + 1
            assert part.errors[-1].attempt == part.attempt
        assert all(part.due_ms >= NOW_MS for part in again)


def test_results_belong_to_the_delivered_items_of_their_slice() -> None:
    batch = [Slice(RUN, 0b1111), Slice(RUN, 0b110000), Slice(RUN, 0b1000000)]
    report = Report(
        (ItemsFailed(0, 0b1000, REFUSED),),
        results=(ItemResult(0, 0b1, "a"), ItemResult(1, 0b110000, "b"), ItemResult(0, 0b10, "c")),
    )
    first, second, third = conclude(batch, report, queue(), NOW_MS, middle)
    assert (first.delivered, first.results) == (0b111, ((0b1, "a"), (0b10, "c")))
    assert (second.delivered, second.results) == (0b110000, ((0b110000, "b"),))
    assert (third.delivered, third.results) == (0b1000000, ())
