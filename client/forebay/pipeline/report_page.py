"""The report's page: one HTML file with everything in it, to be opened, mailed or archived.

Pure text from `ReportData`. It loads nothing and runs no script. Everything that comes from events
(names of queues, errors of destinations) is escaped.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from forebay.pipeline.figures import duration, moment, number, rate, size
from forebay.pipeline.html_table import table
from forebay.pipeline.plots import (
    COLOURS,
    Line,
    Range,
    Show,
    lines,
    ranges,
    time_lines,
)
from forebay.pipeline.report_data import Percentiles, ReportData
from forebay.pipeline.report_outages import outages
from forebay.pipeline.report_style import STYLE
from forebay.pipeline.sizing import (
    OUTAGE_S,
    TICK_S,
    UTILISATION,
    QueueLoad,
    bottlenecks,
    recommend,
)

QUEUES_DRAWN: Final = COLOURS
RANGES_DRAWN: Final = 20


def render(data: ReportData) -> str:
    parts = [
        _head(data),
        _tiles(data),
        _throughput(data),
        _over_time(data),
        _flows(data),
        _bottlenecks(data),
        _sizing(data),
        _errors(data),
        outages(data),
        _foot(data),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(data.title)}: report</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _head(data: ReportData) -> str:
    notes = [
        f"{moment(data.first_ms)} to {moment(data.last_ms)} UTC",
        f"{data.hosts:,} host{'s' * (data.hosts != 1)}",
        f"{data.events:,} events",
    ]
    if data.sample < 1:
        notes.append(f"figures are estimates: {data.sample:.2%} of the runs were noted")
    if data.lost:
        notes.append(f"{data.lost:,} events were lost, and are missing here")
    return f'<h1>{escape(data.title)}</h1><p class="soft">{escape(" · ".join(notes))}</p>'


def _tiles(data: ReportData) -> str:
    delivered, retried, dead = (
        sum(getattr(load, name) for load in data.loads) for name in ("delivered", "retried", "dead")
    )
    tries = delivered + retried + dead
    opened_s = sum((gap.to_ms - gap.from_ms) / 1000 for gap in data.gaps if gap.what == "breaker")
    tiles = [
        (number(delivered), "items delivered"),
        (rate(delivered / data.span_s), "mean, a second"),
        (f"{retried / tries:.1%}" if tries else "–", "of items sent failed, tried again"),
        (number(dead), "dead letters"),
        (
            duration(max((load.wait_p95_ms for load in data.loads), default=0)),
            "longest wait, p95 of a queue",
        ),
        (duration(opened_s * 1000), "breakers not closed"),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{name}</span></div>'
            for value, name in tiles
        )
        + "</div>"
    )


def _throughput(data: ReportData) -> str:
    """All queues together: what came, what went, and what failed."""
    totals: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for step in data.steps:
        for name in ("arrived", "delivered", "retried", "dead"):
            totals[name][step.at_ms] += getattr(step, name) / data.step_s
    drawn = [("arrived", 3), ("delivered", 0), ("retried", 1), ("dead", 2)]
    series = [
        Line(name, sorted(totals[name].items()), colour)
        for name, colour in drawn
        if any(totals[name].values())
    ]
    return (
        "<h2>Throughput</h2>"
        f'<p class="soft">Items a second, in steps of {duration(data.step_s * 1000)}. Where more '
        "arrive than are delivered, the difference waits in forebay.</p>"
        + _lines(series, data, rate, lines)
    )


def _over_time(data: ReportData) -> str:
    queues = [load.queue for load in data.loads][:QUEUES_DRAWN]
    parts = []
    for name, title, words in (
        ("wait_p95_ms", "Wait", "From when an item could be sent until it was: 95 % waited less."),
        ("processing_p95_ms", "Processing", "How long a send took: 95 % took less."),
    ):
        series = [
            Line(
                queue,
                [
                    (step.at_ms, getattr(step, name))
                    for step in data.steps
                    if step.queue == queue and getattr(step, name) is not None
                ],
                order,
            )
            for order, queue in enumerate(queues)
        ]
        drawn = [line for line in series if line.points]
        if drawn:
            parts.append(
                f'<h2>{title}</h2><p class="soft">{words}</p>'
                + _lines(drawn, data, duration, time_lines)
            )
    return "".join(parts)


def _lines(series: Sequence[Line], data: ReportData, show: Show, draw: Callable[..., str]) -> str:
    step_ms = data.step_s * 1000
    first_ms = min((line.points[0][0] for line in series if line.points), default=data.first_ms)
    return draw(series, min(first_ms, data.first_ms), data.last_ms, show, step_ms)


def _flows(data: ReportData) -> str:
    if not data.flows:
        return ""
    parts = ["<h2>Flows</h2>"]
    if data.flows_total > len(data.flows):
        parts.append(f'<p class="soft">The {len(data.flows)} busiest of {data.flows_total:,}.</p>')
    for title, name in (("Wait", "wait"), ("Processing", "processing")):
        rows = [
            row
            for flow in data.flows[:RANGES_DRAWN]
            if (row := _range(_flow_name(flow.queue, flow.flow), getattr(flow, name))) is not None
        ]
        if rows:
            parts.append(
                f'<p class="soft">{title}: p50 to p99 of the items, p95 marked.</p>'
                + ranges(rows, duration)
            )
    header = (
        "flow", "delivered", "tried again", "dead",
        "wait p50", "p95", "p99", "processing p50", "p95", "p99",
    )  # fmt: skip
    body = [
        (
            _flow_name(flow.queue, flow.flow),
            number(flow.delivered),
            number(flow.retried),
            number(flow.dead),
            *(_time(value) for value in (flow.wait.p50, flow.wait.p95, flow.wait.p99)),
            *(
                _time(value)
                for value in (flow.processing.p50, flow.processing.p95, flow.processing.p99)
            ),
        )
        for flow in data.flows
    ]
    return "".join([*parts, table(header, body)])


def _range(name: str, times: Percentiles) -> Range | None:
    if times.p50 is None or times.p95 is None or times.p99 is None:
        return None
    return Range(name, times.p50, times.p95, times.p99)


def _bottlenecks(data: ReportData) -> str:
    found = [(load.queue, text) for load in data.loads for text in bottlenecks(load)]
    if not found:
        return "<h2>Bottlenecks</h2><p>None: nothing waits for long, and little fails.</p>"
    entries = "".join(f"<li><b>{escape(queue)}</b>: {escape(text)}</li>" for queue, text in found)
    return f"<h2>Bottlenecks</h2><ul>{entries}</ul>"


def _sizing(data: ReportData) -> str:
    header = (
        "queue", "items/s mean", "peak", "ms a send", "items a send", "busy",
        "workers now", "advised", "warm_max_items now", "advised", "disk, 1 h away", "catch up",
    )  # fmt: skip
    return (
        "<h2>Sizing</h2>"
        f'<p class="soft">workers = peak × seconds a send ÷ items a send ÷ {UTILISATION:g}; '
        f"warm_max_items = 2 × workers × batch_items + peak × {TICK_S:g} s; disk = mean × bytes "
        f"an item × {OUTAGE_S:g} s; catch up = the time to send what gathered in it. Peak: 95 % of "
        "the steps of time had less. All hosts together.</p>"
        + table(header, [_sizing_row(load) for load in data.loads])
    )


def _sizing_row(load: QueueLoad) -> tuple[str, ...]:
    advice = recommend(load)
    is_pulled = load.is_pulled
    return (
        load.queue,
        rate(load.arrival_mean),
        rate(load.arrival_peak),
        "–" if is_pulled else f"{load.send_s * 1000:,.1f}",
        "–" if is_pulled else number(load.batch),
        "–" if not load.workers else f"{min(1.0, load.utilisation):.0%}",
        number(load.workers) if load.workers else "pull" if is_pulled else "–",
        "–" if is_pulled else number(advice.workers),
        number(load.warm_max_items) if load.warm_max_items else "–",
        number(advice.warm_max_items),
        size(advice.disk_bytes),
        "–"
        if is_pulled
        else "never"
        if math.isinf(advice.catch_up_s)
        else duration(advice.catch_up_s * 1000),
    )


def _errors(data: ReportData) -> str:
    if not data.errors:
        return ""
    header = ("error", "queue", "tried again", "dead", "last")
    body = [
        (each.error, each.queue, number(each.retried), number(each.dead), moment(each.last_ms))
        for each in data.errors
    ]
    return "<h2>Errors</h2>" + table(header, body, texts=2)


def _foot(data: ReportData) -> str:
    entries = "".join(
        f"<li>{escape(name)}: <code>{escape(path)}</code></li>"
        for name, path in data.tables.items()
    )
    return f"<h2>Tables</h2><p>The whole of it, as Parquet:</p><ul>{entries}</ul>"


def _flow_name(queue: str, flow: str) -> str:
    return f"{queue} / {flow}" if flow else queue


def _time(value: float | None) -> str:
    return "–" if value is None else duration(value)
