"""The report's page and its advice: pure functions, no Spark."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from forebay.pipeline.plots import Line, lines, x_ticks, y_ticks
from forebay.pipeline.report_data import ErrorKind, Flow, Gap, Percentiles, ReportData, Step
from forebay.pipeline.report_page import duration, number, rate, render, size
from forebay.pipeline.sizing import QueueLoad, bottlenecks, recommend

T0 = 1_755_000_000_000
LOAD = QueueLoad(
    queue="crm",
    delivered=100_000,
    retried=0,
    dead=0,
    arrival_mean=500,
    arrival_peak=1000,
    sends=1000,
    send_s=0.2,
    batch=100,
    item_bytes=300,
    busy_s=100,
    active_s=200,
    wait_p95_ms=50,
    processing_p95_ms=250,
    workers=4,
    batch_max=500,
    rate_limit=0,
    warm_max_items=5000,
    open_share=0,
)
TIMES = Percentiles(10, 50, 90)
DATA = ReportData(
    title="<forebay>",
    first_ms=T0,
    last_ms=T0 + 600_000,
    step_s=60,
    hosts=2,
    events=1234,
    lost=0,
    sample=1.0,
    steps=tuple(Step(T0 + n * 60_000, "crm", 100, 90, 5, 1, 20.0, 30.0) for n in range(10)),
    flows=(Flow("crm", "eu<script>", 100, 90, 5, 1, TIMES, Percentiles(None, None, None)),),
    flows_total=1,
    errors=(ErrorKind("crm", "http://crm", "<b>HTTP 503</b>", 5, 1, T0),),
    gaps=(Gap("breaker", "a", "http://crm", T0 + 60_000, T0 + 120_000, "HTTP 503"),),
    gaps_total=1,
    loads=(LOAD,),
    tables={"steps": "/tmp/steps"},
)


class TestSizing:
    def test_workers_are_what_is_under_way_at_70_percent(self) -> None:
        # 1,000 items a second are 10 sends of 0.2 s: 2 are under way at a time.
        assert recommend(LOAD).workers == 3
        assert recommend(replace(LOAD, arrival_peak=10_000)).workers == 29
        assert recommend(replace(LOAD, arrival_peak=0.1)).workers == 1

    def test_warm_holds_two_batches_a_worker_and_a_tick(self) -> None:
        assert recommend(LOAD).warm_max_items == 2 * 3 * 500 + 1000 * 5
        assert recommend(LOAD).warm_max_bytes == 8000 * 300

    def test_disk_is_for_an_hour_and_catching_up_takes_what_is_spare(self) -> None:
        advice = recommend(LOAD)
        assert advice.disk_bytes == 500 * 300 * 3600
        assert advice.capacity == pytest.approx(1500)
        assert advice.catch_up_s == pytest.approx(500 * 3600 / 1000)

    def test_a_rate_limit_below_what_arrives_never_catches_up(self) -> None:
        assert math.isinf(recommend(replace(LOAD, rate_limit=400)).catch_up_s)

    def test_where_consumers_pull_there_is_no_advice_about_workers(self) -> None:
        advice = recommend(replace(LOAD, sends=0, send_s=0, workers=0))
        assert (advice.workers, advice.warm_max_items) == (0, 5000)


class TestBottlenecks:
    def test_none_where_nothing_waits_and_nothing_fails(self) -> None:
        assert bottlenecks(LOAD) == []

    @pytest.mark.parametrize(
        "change,words",
        [
            ({"busy_s": 790}, "busy 99%"),
            ({"busy_s": 790, "batch": 450}, "Batches are full"),
            ({"open_share": 0.3}, "breaker was not closed 30%"),
            ({"rate_limit": 500}, "rate limit: 500"),
            ({"wait_p95_ms": 90_000}, "although workers are idle 88%"),
            ({"retried": 10_000, "dead": 1_000}, "10% of what is sent fails"),
        ],
    )
    def test_each_is_named_with_its_figure(self, change: dict[str, float], words: str) -> None:
        (text,) = bottlenecks(replace(LOAD, **change))  # type: ignore[arg-type]
        assert words in text


class TestPlots:
    @pytest.mark.parametrize(
        "highest,ticks",
        [
            (0, [0, 1]),
            (4, [0, 1, 2, 3, 4]),
            (7, [0, 2, 4, 6, 8]),
            (1000, [0, 250, 500, 750, 1000]),
        ],
    )
    def test_the_axis_has_round_numbers(self, highest: float, ticks: list[float]) -> None:
        assert y_ticks(highest) == ticks

    def test_times_are_round_and_few(self) -> None:
        found = x_ticks(T0 + 1234, T0 + 3_600_000)
        assert 4 <= len(found) <= 8
        assert all(at % 600_000 == 0 for at in found)
        assert len(x_ticks(T0, T0 + 40 * 86_400_000)) <= 8

    def test_a_gap_in_time_is_a_gap_in_the_line(self) -> None:
        points = [(T0 + n * 1000, 1.0) for n in (0, 1, 2, 10, 11)]
        drawn = lines([Line("a", points, 0)], T0, T0 + 11_000, str, 1000)
        assert drawn.count("<polyline") == 2


class TestPage:
    def test_it_is_whole_and_loads_nothing(self) -> None:
        page = render(DATA)
        assert not re.search(r"<script|<link|<img|@import|url\(|src=|href=", page)
        assert set(re.findall(r"https?://[^\"<\s]+", page)) <= {
            "http://www.w3.org/2000/svg",
            "http://crm",
        }

    def test_every_tag_is_closed_and_what_came_from_events_is_text(self) -> None:
        page = render(DATA)
        balance = Balance()
        balance.feed(page)
        assert balance.open == []
        assert "eu&lt;script&gt;" in page
        assert "&lt;b&gt;HTTP 503&lt;/b&gt;" in page

    def test_it_says_what_is_estimated_and_what_is_missing(self) -> None:
        assert "estimates" not in render(DATA)
        page = render(replace(DATA, sample=0.01, lost=77))
        assert "1.00% of the runs were logged" in page
        assert "77 events were lost" in page

    def test_what_was_not_over_is_shown_as_long_as_it_was_known(self) -> None:
        (gap,) = DATA.gaps
        assert "to 2025-08-12 12:02:00 (1 min)" in render(DATA)
        page = render(replace(DATA, gaps=(replace(gap, is_over=False),)))
        assert "to 2025-08-12 12:02:00 or later (1 min)" in page

    def test_a_report_with_nothing_in_it_is_a_page_all_the_same(self) -> None:
        empty = replace(DATA, steps=(), flows=(), errors=(), gaps=(), loads=())
        assert "None: no breaker opened" in render(empty)


class Balance(HTMLParser):
    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """Nothing stays open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_figures_are_as_people_read_them() -> None:
    assert [duration(ms) for ms in (0, 0.25, 250, 1000, 1500, 90_000, 7_200_000)] == [
        "0 ms",
        "0.25 ms",
        "250 ms",
        "1 s",
        "1.5 s",
        "1.5 min",
        "2 h",
    ]
    assert [size(n) for n in (10, 2048, 3 * 2**30)] == ["10 B", "2.0 KiB", "3.0 GiB"]
    assert [rate(n) for n in (0, 0.123, 12.3, 45_678)] == ["0", "0.12", "12", "46k"]
    assert number(1234567) == "1,234,567"
