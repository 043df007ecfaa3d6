"""The report's page: one HTML file with everything in it, to be opened, mailed or archived.

Pure text from `ReportData`. The page loads nothing and runs no script. Everything that comes from
events (names of queues, errors of destinations) is escaped.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from forebay.pipeline.plots import (
    COLOURS,
    STYLE,
    Line,
    Range,
    Show,
    Span,
    calendar,
    lines,
    ranges,
    time_lines,
)
from forebay.pipeline.report_data import Gap, Percentiles, ReportData
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
GAPS_DRAWN: Final = 30
"""In the calendar of outages."""


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
        _outages(data),
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
        notes.append(f"figures are estimates: {data.sample:.2%} of the runs were logged")
    if data.lost:
        notes.append(f"{data.lost:,} events were lost and are missing here")
    return f'<h1>{escape(data.title)}</h1><p class="soft">{escape(" · ".join(notes))}</p>'


def _tiles(data: ReportData) -> str:
    delivered, retried, dead = (
        sum(getattr(load, name) for load in data.loads) for name in ("delivered", "retried", "dead")
    )
    tries = delivered + retried + dead
    opened_s = sum((gap.to_ms - gap.from_ms) / 1000 for gap in data.gaps if gap.what == "breaker")
    tiles = [
        (number(delivered), "items delivered"),
        (rate(delivered / data.span_s), "mean per second"),
        (f"{retried / tries:.1%}" if tries else "–", "of the items sent failed and were retried"),
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
    """Arrivals, deliveries and failures of all queues together."""
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
        f'<p class="soft">Items per second, in steps of {duration(data.step_s * 1000)}. Where more '
        "arrive than are delivered, the difference waits in forebay.</p>"
        + _lines(series, data, rate, lines)
    )


def _over_time(data: ReportData) -> str:
    queues = [load.queue for load in data.loads][:QUEUES_DRAWN]
    parts = []
    for name, title, words in (
        ("wait_p95_ms", "Wait", "From when an item was due until it was sent: 95 % waited less."),
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
        "flow", "delivered", "retried", "dead",
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
        "queue", "items/s mean", "peak", "ms per send", "items per send", "busy",
        "workers now", "advised", "warm_max_items now", "advised", "disk, 1 h away", "catch up",
    )  # fmt: skip
    return (
        "<h2>Sizing</h2>"
        f'<p class="soft">workers = peak × seconds per send ÷ items per send ÷ {UTILISATION:g}; '
        f"warm_max_items = 2 × workers × batch_items + peak × {TICK_S:g} s; disk = mean × bytes "
        f"per item × {OUTAGE_S:g} s; catch up = the time to send what arrived in it. Peak: 95 % of "
        "the time steps had less. All hosts together.</p>"
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
    header = ("error", "queue", "retried", "dead", "last")
    body = [
        (each.error, each.queue, number(each.retried), number(each.dead), moment(each.last_ms))
        for each in data.errors
    ]
    return "<h2>Errors</h2>" + table(header, body, texts=2)


def _outages(data: ReportData) -> str:
    """Breakers, stores and daemons that were away."""
    title = "<h2>Outages</h2>"
    if not data.gaps:
        return title + "<p>None: no breaker opened, no store and no daemon was away.</p>"
    gaps = sorted(data.gaps, key=lambda gap: gap.from_ms)
    rows = list(dict.fromkeys(_gap_row(gap) for gap in gaps))[:GAPS_DRAWN]
    spans = [_span(gap) for gap in gaps if _gap_row(gap) in rows]
    words = "Breakers that were not closed (amber), stores away (red), daemons away (violet)."
    if data.gaps_total > len(data.gaps):
        words += f" The longest {len(data.gaps)} of {data.gaps_total:,}."
    return (
        title
        + f'<p class="soft">{words}</p>'
        + calendar(spans, data.first_ms, data.last_ms)
        + _gap_table(gaps)
    )


def _span(gap: Gap) -> Span:
    until = moment(gap.to_ms) if gap.is_over else f"{moment(gap.to_ms)} or later"
    text = f"{_gap_row(gap)}: {moment(gap.from_ms)} to {until} ({_lasted([gap])})"
    if gap.error:
        text += f": {gap.error}"
    return Span(_gap_row(gap), gap.from_ms, gap.to_ms, gap.what, text)


def _gap_table(gaps: Sequence[Gap]) -> str:
    named: dict[tuple[str, str], list[Gap]] = defaultdict(list)
    for gap in gaps:
        named[gap.what, gap.name].append(gap)
    body = [
        (
            name,
            what,
            number(len(each)),
            _lasted(each),
            moment(each[-1].from_ms),
            each[-1].error or "",
        )
        for (what, name), each in named.items()
    ]
    header = ("what", "kind", "times", "in all", "last", "error")
    return table(header, body, texts=2, last_is_text=True)


def _lasted(gaps: Sequence[Gap]) -> str:
    return duration(sum(gap.to_ms - gap.from_ms for gap in gaps))


def _gap_row(gap: Gap) -> str:
    return f"{gap.name} on {gap.host}"


def _foot(data: ReportData) -> str:
    entries = "".join(
        f"<li>{escape(name)}: <code>{escape(path)}</code></li>"
        for name, path in data.tables.items()
    )
    return f"<h2>Tables</h2><p>All figures, as Parquet:</p><ul>{entries}</ul>"


def _flow_name(queue: str, flow: str) -> str:
    return f"{queue} / {flow}" if flow else queue


def _time(value: float | None) -> str:
    return "–" if value is None else duration(value)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int = 1,
    last_is_text: bool = False,
) -> str:
    """The first `texts` columns are text, the others numbers."""

    def cell(tag: str, column: int, text: str) -> str:
        is_text = column < texts or (last_is_text and column == len(header) - 1)
        return f"<{tag}{' class=t' if is_text else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(header))
    body = "".join(
        "<tr>" + "".join(cell("td", column, text) for column, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def number(value: float) -> str:
    return f"{value:,.1f}" if value < 10 and value != int(value) else f"{value:,.0f}"


def rate(value: float) -> str:
    """Items per second."""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def duration(milliseconds: float) -> str:
    """With two significant digits: 250 ms, 1.5 s, 12 min."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if milliseconds >= size:
            return f"{milliseconds / size:.{1 if milliseconds < 10 * size else 0}f} {unit}".replace(
                ".0 ", " "
            )
    return (
        f"{milliseconds:.0f} ms"
        if milliseconds >= 10 or not milliseconds
        else f"{milliseconds:.2g} ms"
    )


def size(value: float) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{value / 1024**power:,.1f} {unit}"
    return f"{value:,.0f} B"


def moment(milliseconds: float) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"
