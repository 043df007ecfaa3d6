"""Schedules: what may be said of one, when it ticks, and how far ahead. Pure, as tables."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.config.grids import Period, cron_grid, latest_ticks, next_ticks
from actors.config.schedules import Missed, ScheduleSettings, check_schedules
from actors.config.section import Clash
from actors.cron.look_ahead import (
    FOREVER_MS,
    MISSED_MAX,
    TickStep,
    Wanted,
    down_after_ms,
    next_step,
    refresh_s,
)
from actors.ports.ticks import Span, TickMark, key_span, tick_key

MINUTE = 60_000
DAY = 86_400_000
BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    """Of a moment in UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def utc(tick: int) -> str:
    return datetime.fromtimestamp(tick / 1000, UTC).strftime("%m-%d %H:%M")


def schedule(**keys: Any) -> ScheduleSettings:
    return ScheduleSettings.model_validate({"queue": "q", **keys})


def ticks(after: str, count: int, **keys: Any) -> list[str]:
    return [utc(tick) for tick in next_ticks(schedule(**keys).grid, ms(after), count)]


class TestSettings:
    @pytest.mark.parametrize(
        "keys, message",
        [
            ({}, "give one of cron, daily and every, not none"),
            ({"every": "10s", "cron": "* * * * *"}, "not cron and every"),
            ({"every": "10s", "zone": "UTC"}, "zone belongs to cron"),
            ({"every": "0.5s"}, "outside 1s..365d"),
            ({"every": "1.0001s"}, "whole number of milliseconds"),
            ({"cron": "* * * * * *"}, "has 6 fields, not 5"),
            ({"cron": "0," * 200 + "0 * * * *"}, "at most 200 characters"),
            ({"cron": "@daily"}, "has 1 fields, not 5"),
            ({"cron": "61 * * * *"}, "is not a valid cron expression"),
            ({"cron": "0 0 30 2 *"}, "is not a valid cron expression"),
            ({"cron": "R 2 * * *"}, "is random"),
            ({"cron": "H(0-5) 2 * * *"}, "is random"),
            ({"cron": "0 2 * * *", "zone": "Europe/Nowhere"}, "no time zone"),
            ({"cron": "0 2 * * *", "zone": "../etc"}, "no time zone"),
            ({"daily": {"at": 750}}, "write it in quotes"),
            ({"daily": {"at": "24:00"}}, "hour must be in"),
            ({"daily": {"at": "2:30"}}, "not a valid time of day"),
            ({"every": 10, "payload": "x" * 70_000}, "at most 65536 bytes"),
            ({"every": 10, "headers": {"tick_ms": "1"}}, "set by forebay"),
            ({"every": 10, "flow": "f" * 300}, "at most 255 bytes"),
            ({"every": 10, "queue": "bad name"}, "queue"),
            ({"every": 10, "missed": "some"}, "run_once"),
            ({"every": 10, "priority": 256}, "outside 0..255"),
            ({"every": 10, "more": 1}, "more"),
        ],
    )
    def test_what_cannot_be_is_refused(self, keys: dict[str, Any], message: str) -> None:
        with pytest.raises((ValidationError, Clash)) as caught:
            schedule(**keys)
        assert message in str(caught.value)

    def test_payloads_are_texts_or_json(self) -> None:
        assert schedule(every=1, payload="hé").payload_bytes == "hé".encode()
        assert schedule(every=1, payload={"a": [1, "é"]}).payload_bytes == '{"a":[1,"é"]}'.encode()

    def test_the_fingerprint_is_of_what_makes_a_tick(self) -> None:
        one = schedule(every=10, payload="a")
        same = schedule(every="10s", payload="a", missed="skip", enabled=False, description="d")
        assert one.fingerprint == same.fingerprint
        others: list[dict[str, Any]] = [
            {"payload": "b"},
            {"queue": "r"},
            {"every": 11},
            {"priority": "high"},
        ]
        assert (
            len({schedule(**{"every": 10, "payload": "a", **o}).fingerprint for o in others}) == 4
        )

    def test_a_label_must_be_one_of_the_configuration(self) -> None:
        check_schedules({"s": schedule(every=1, priority="high")}, {"high": 0})
        with pytest.raises(Clash, match="no priority 'high'"):
            check_schedules({"s": schedule(every=1, priority="high")}, {})

    def test_every_key_stands_in_the_reference(self) -> None:
        text = (Path(__file__).parents[3] / "etc" / "forebay.yaml").read_text()
        said = text[text.index("schedules: {}") : text.index("triggers: {}")]
        for key in (*ScheduleSettings.model_fields, "1s..365d", "0..255", str(MISSED_MAX)):
            assert key in said, key

    @pytest.mark.parametrize(
        "keys, text",
        [
            ({"every": 90}, "every 90s"),
            ({"cron": "0 2 * * *"}, "0 2 * * *"),
            ({"cron": "0 2 * * *", "zone": "Europe/Berlin"}, "0 2 * * * (Europe/Berlin)"),
            ({"daily": {"at": "02:30"}}, "daily at 02:30 (UTC)"),
        ],
    )
    def test_when_in_words(self, keys: dict[str, Any], text: str) -> None:
        assert schedule(**keys).when == text


class TestGrids:
    @given(st.integers(0, 4 * 10**12), st.integers(1000, 10**10))
    def test_a_period_lies_on_the_grid_of_1970(self, at: int, period: int) -> None:
        found = next_ticks(Period(period), at, 4)
        assert found[0] - period <= at < found[0]
        assert all(tick % period == 0 for tick in found)
        assert all(b - a == period for a, b in pairwise(found))

    def test_a_time_that_does_not_exist_ticks_at_the_first_moment_after_the_gap(self) -> None:
        # Clocks go from 02:00 to 03:00 on 2026-03-29, at 01:00 UTC.
        daily = {"at": "02:30", "zone": "Europe/Berlin"}
        expected = ["03-28 01:30", "03-29 01:00", "03-30 00:30"]
        assert ticks("2026-03-28T00:00", 3, daily=daily) == expected
        assert ticks("2026-03-28T00:00", 3, cron="30 2 * * *", zone="Europe/Berlin") == expected
        # From the middle of it, and from the moment itself.
        assert ticks("2026-03-29T00:59", 1, daily=daily) == ["03-29 01:00"]
        assert ticks("2026-03-29T01:00", 1, daily=daily) == ["03-30 00:30"]

    def test_a_time_that_exists_twice_ticks_once_at_the_first(self) -> None:
        # Clocks go from 03:00 to 02:00 on 2026-10-25, at 01:00 UTC.
        daily = {"at": "02:30", "zone": "Europe/Berlin"}
        expected = ["10-24 00:30", "10-25 00:30", "10-26 01:30"]
        assert ticks("2026-10-24T00:00", 3, daily=daily) == expected
        assert ticks("2026-10-24T00:00", 3, cron="30 2 * * *", zone="Europe/Berlin") == expected
        for minute in ("00:30", "00:59", "01:00", "01:30", "01:31"):
            assert ticks(f"2026-10-25T{minute}", 1, daily=daily) == ["10-26 01:30"]

    def test_many_times_in_a_gap_tick_once(self) -> None:
        found = ticks("2026-03-29T00:00", 3, cron="*/10 2 * * *", zone="Europe/Berlin")
        assert found == ["03-29 01:00", "03-30 00:00", "03-30 00:10"]

    def test_where_the_hour_is_any_the_time_that_passes_counts(self) -> None:
        for day in ("2026-03-29", "2026-10-25"):
            found = ticks(f"{day}T00:15", 4, cron="*/30 * * * *", zone="Europe/Berlin")
            assert [tick[-5:] for tick in found] == ["00:30", "01:00", "01:30", "02:00"]

    def test_a_day_that_a_zone_has_skipped(self) -> None:
        # Samoa went over the date line: there was no 2011-12-30.
        grid = cron_grid("0 12 * * *", ZoneInfo("Pacific/Apia"))
        found = [utc(tick) for tick in next_ticks(grid, ms("2011-12-29T00:00"), 3)]
        assert found == ["12-29 22:00", "12-30 10:00", "12-30 22:00"]

    def test_a_range_of_one_is_one(self) -> None:
        expected = ["01-01 07:04", "01-01 07:09"]
        assert ticks("2026-01-01T00:00", 2, cron="4-4,9 7-7/2 * * *") == expected

    def test_the_latest_of_many(self) -> None:
        second = Period(1000)
        assert latest_ticks(second, 0, 10 * DAY, 2) == [10 * DAY - 1000, 10 * DAY]
        assert latest_ticks(second, 500, 2500, 9) == [1000, 2000]
        assert latest_ticks(second, 2000, 2000, 9) == []
        assert latest_ticks(second, 0, DAY, 0) == []
        leap = schedule(cron="0 0 29 2 *").grid
        found = latest_ticks(leap, ms("2001-01-01"), ms("2026-01-01"), 3)
        assert [datetime.fromtimestamp(at / 1000, UTC).year for at in found] == [2016, 2020, 2024]


# An independent reading of cron expressions: every minute is looked at, one by one.


@cache
def brute_values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = (int(end) for end in span.split("-"))
        else:
            first = int(span)
            last = high if step else first
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def brute_matches(expression: str, at: datetime) -> bool:
    minute, hour, dom, month, dow = expression.split()
    if at.minute not in brute_values(minute, 0, 59) or at.hour not in brute_values(hour, 0, 23):
        return False
    if at.month not in brute_values(month, 1, 12):
        return False
    in_dom = at.day in brute_values(dom, 1, 31)
    in_dow = at.isoweekday() % 7 in {day % 7 for day in brute_values(dow, 0, 6)}
    if dom != "*" and dow != "*":
        return in_dom or in_dow
    return in_dom and in_dow


def brute_ticks(expression: str, zone: ZoneInfo, after_ms: int, days: int) -> list[int]:
    """By the rules of docs/schedules.md, minute by minute of the time that passes."""
    found: list[int] = []
    is_passing = expression.split()[1].startswith("*")
    first = after_ms // MINUTE * MINUTE
    before = local_of(first - 3 * 60 * MINUTE, zone)
    seen = {before}
    for tick in range(first - 3 * 60 * MINUTE, first + days * DAY, MINUTE):
        local = local_of(tick, zone)
        skipped = []
        minute = before + timedelta(minutes=1)
        while not is_passing and minute < local:
            skipped.append(minute)
            minute += timedelta(minutes=1)
        is_again = local in seen and not is_passing and tick > first - 3 * 60 * MINUTE
        shown = [] if is_again else [local]
        if tick > after_ms and any(brute_matches(expression, at) for at in skipped + shown):
            found.append(tick)
        before = local
        seen.add(local)
    return found


def local_of(tick: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(tick / 1000, UTC).astimezone(zone).replace(tzinfo=None)


def cron_field(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high).map(str)
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(
        lambda ends: f"{min(ends)}-{max(ends)}"
    )
    step = st.integers(1, max(1, (high - low) // 2)).map(lambda n: f"*/{n}")
    listed = st.lists(st.one_of(one, span), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), step, listed)


EXPRESSIONS = st.tuples(
    cron_field(0, 59),
    cron_field(0, 23),
    st.one_of(st.just("*"), cron_field(1, 28)),
    st.just("*"),
    st.one_of(st.just("*"), st.integers(0, 6).map(str)),
).map(" ".join)
CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("UTC", "2026-02-28T23:00"),
]


@settings(max_examples=40, deadline=None)
@given(EXPRESSIONS, st.sampled_from(CHANGES), st.integers(-1500, 200), st.integers(0, 59_999))
def test_cron_grids_are_those_of_an_independent_reading(
    expression: str, change: tuple[str, str], minutes: int, more_ms: int
) -> None:
    zone, after = ZoneInfo(change[0]), ms(change[1]) + minutes * MINUTE + more_ms
    expected = brute_ticks(expression, zone, after, days=2)[:12]
    found = next_ticks(cron_grid(expression, zone), after, len(expected))
    assert [utc(tick) for tick in found] == [utc(tick) for tick in expected]


# Looking ahead. A tick each 10 s; it is 100 s after 1970.

NOW = 100_000
AHEAD = (110_000, 120_000, 130_000, 140_000)


def step(mark: TickMark | None, missed: Missed = "run_once", *, is_new: bool = False) -> TickStep:
    return next_step(mark, Wanted("q", "this", Period(10_000), missed, is_new), NOW)


def mark(until_s: int, seen_s: int, fingerprint: str = "this", since_s: int = 0) -> TickMark:
    return TickMark("q", fingerprint, until_s * 1000, seen_s * 1000, since_s * 1000)


def new_mark() -> TickMark:
    return mark(140, 100, since_s=100)


class TestLookAhead:
    def test_what_is_new_begins_with_the_next_tick(self) -> None:
        found = step(None)
        assert (found.mark, found.ticks, found.drop) == (new_mark(), AHEAD, None)

    def test_nothing_is_told_while_all_is_there_and_was_seen(self) -> None:
        assert not step(mark(140, 98)).is_due
        seen = step(mark(140, 97))
        assert (seen.is_due, seen.ticks, seen.mark) == (True, (), mark(140, 100))

    def test_the_look_ahead_goes_on_where_it_ended(self) -> None:
        found = step(mark(120, 98))
        assert (found.ticks, found.mark, found.drop) == (AHEAD[2:], mark(140, 100), None)

    @pytest.mark.parametrize("missed", ["run_once", "run_all", "skip"])
    def test_after_a_short_pause_everything_runs_late(self, missed: Missed) -> None:
        found = step(mark(80, 90), missed)
        assert (found.ticks, found.drop, found.given_up) == ((90_000, NOW, *AHEAD), None, 0)

    def test_run_all_makes_up_for_everything(self) -> None:
        found = step(mark(70, 20), "run_all")
        assert (found.ticks, found.drop) == ((80_000, 90_000, NOW, *AHEAD), None)

    def test_run_all_has_a_bound(self) -> None:
        wanted = Wanted("q", "this", Period(1000), "run_all", False)
        found = next_step(mark(0, 0), wanted, 5_000_000)
        assert len(found.ticks) == MISSED_MAX + 4
        assert found.ticks[0] == 5_000_000 - (MISSED_MAX - 1) * 1000

    def test_skip_gives_up_what_was_missed_installed_or_not(self) -> None:
        found = step(mark(70, 20), "skip")
        assert (found.ticks, found.drop) == (AHEAD, Span(20_000, NOW))
        assert (found.given_up, found.missed_ms) == (3, NOW)
        assert found.mark is not None
        assert (found.mark.missed, found.mark.missed_ms) == (3, NOW)

    def test_run_once_runs_the_last_that_was_missed(self) -> None:
        found = step(mark(70, 20), "run_once")
        assert (found.ticks, found.drop) == ((NOW, *AHEAD), Span(20_000, NOW))
        assert (found.given_up, found.missed_ms) == (2, 90_000)

    def test_run_once_leaves_the_last_one_that_is_installed(self) -> None:
        found = step(mark(110, 20), "run_once")
        assert (found.ticks, found.drop) == (AHEAD[1:], Span(20_000, 99_999))
        assert (found.given_up, found.missed_ms) == (0, 90_000)

    def test_what_was_missed_is_counted_on_through_another_configuration(self) -> None:
        before = mark(140, 99, "other")._replace(missed=7, missed_ms=50_000)
        found = step(before, is_new=True).mark
        assert found == new_mark()._replace(missed=7, missed_ms=50_000)

    def test_another_configuration_takes_over_when_it_is_new(self) -> None:
        found = step(mark(140, 99, "other"), is_new=True)
        assert (found.ticks, found.drop) == (AHEAD, Span(NOW, FOREVER_MS))
        assert found.mark == new_mark()

    def test_what_another_daemon_has_otherwise_is_left_until_it_runs_out(self) -> None:
        assert not step(mark(101, 20, "other")).is_due
        assert step(mark(100, 20, "other")).ticks == AHEAD

    def test_a_clock_that_was_set_back_does_not_stop_a_schedule(self) -> None:
        assert not step(mark(260, 99)).is_due
        found = step(mark(270, 99))
        assert (found.ticks, found.drop) == (AHEAD, Span(NOW, FOREVER_MS))
        assert found.mark == new_mark()

    @pytest.mark.parametrize(
        "apart_s, refresh, down_s", [(1, 1, 10), (10, 2.5, 10), (60, 15, 45), (3600, 60, 180)]
    )
    def test_how_often_it_is_looked_at(self, apart_s: int, refresh: float, down_s: int) -> None:
        assert refresh_s([0, apart_s * 1000, apart_s * 2000]) == refresh
        assert down_after_ms(refresh) == down_s * 1000

    def test_keys_sort_as_their_times(self) -> None:
        one = TickMark("q", "abc", 0, 0)
        first, last = key_span("s", one, Span(999, FOREVER_MS))
        assert first == b"s/abc/0000000000999"
        assert first < tick_key("s", "abc", 1000) < tick_key("s", "abc", 1_755_000_000_000) <= last
        assert not first < tick_key("s", "abc", 999)
