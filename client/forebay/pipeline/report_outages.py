"""The part of the report's page about what was away: breakers, stores, daemons."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from forebay.pipeline.figures import duration, moment, number
from forebay.pipeline.html_table import table
from forebay.pipeline.plots import Span, calendar
from forebay.pipeline.report_data import Gap, ReportData

ROWS_DRAWN: Final = 30
"""Rows of the calendar."""


def outages(data: ReportData) -> str:
    title = "<h2>Outages</h2>"
    if not data.gaps:
        return title + "<p>None: no breaker opened, no store and no daemon was away.</p>"
    gaps = sorted(data.gaps, key=lambda gap: gap.from_ms)
    rows = list(dict.fromkeys(_gap_row(gap) for gap in gaps))[:ROWS_DRAWN]
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
