"""Plots as inline SVG: lines over time, ranges of percentiles, and a calendar of outages.

Pure text from plain values. Colours are classes, so that the style sheet chooses them for light and
dark; it is here too (STYLE), and serves the whole page. It needs no fonts or files from elsewhere.
Everything that comes from data is escaped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

WIDTH: Final = 960
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 8

LIGHT: Final = (
    "#2563eb",
    "#d97706",
    "#dc2626",
    "#059669",
    "#7c3aed",
    "#0891b2",
    "#be185d",
    "#65a30d",
)
DARK: Final = (
    "#60a5fa",
    "#fbbf24",
    "#f87171",
    "#34d399",
    "#a78bfa",
    "#22d3ee",
    "#f472b6",
    "#a3e635",
)
COLOURS: Final = len(LIGHT)
"""Classes c0 to c7."""

assert len(DARK) == COLOURS

TICKS_S: Final = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    21600,
    43200,
)

Show = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    """(milliseconds since 1970, value), in order."""
    colour: int


@dataclass(frozen=True, slots=True)
class Span:
    """A bar in the calendar."""

    row: str
    from_ms: float
    to_ms: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Range:
    """p50, p95 and p99 of something, in milliseconds."""

    name: str
    p50: float
    p95: float
    p99: float


def lines(
    series: Sequence[Line],
    first_ms: float,
    last_ms: float,
    show: Show,
    step_ms: float,
    height: int = 220,
) -> str:
    """Lines over time; a gap of more than a step is a gap in the line."""
    highest = max((y for line in series for _, y in line.points), default=0.0)
    ticks = y_ticks(highest)
    scale_y = _scale(0.0, ticks[-1], height - 24, TOP)
    axis = _y_axis([(scale_y(tick), show(tick)) for tick in ticks])
    return _lines(series, first_ms, last_ms, show, step_ms, height, scale_y, axis)


def time_lines(
    series: Sequence[Line],
    first_ms: float,
    last_ms: float,
    show: Show,
    step_ms: float,
    height: int = 220,
) -> str:
    """The same of milliseconds, on a logarithmic axis: waits go from nothing to hours."""
    values = [y for line in series for _, y in line.points]
    low, high = powers(values)
    scale = _scale(low, high, height - 24, TOP)
    axis = _y_axis([(scale(power), _power(power)) for power in range(low, high + 1)])
    scale_y = _logarithmic(scale, 10.0**low)
    return _lines(series, first_ms, last_ms, show, step_ms, height, scale_y, axis)


def _lines(
    series: Sequence[Line],
    first_ms: float,
    last_ms: float,
    show: Show,
    step_ms: float,
    height: int,
    scale_y: Callable[[float], float],
    axis: Sequence[str],
) -> str:
    scale_x = _scale(first_ms, last_ms, LEFT, WIDTH - RIGHT)
    parts = [_frame(height), *axis, *_x_axis(first_ms, last_ms, height - 24)]
    for line in series:
        for piece in _pieces(line.points, step_ms):
            parts.append(_path(piece, scale_x, scale_y, line.colour))
            parts += _dots(line, piece, scale_x, scale_y, show)
    return "".join([*parts, "</svg>", legend(series)])


def calendar(spans: Sequence[Span], first_ms: float, last_ms: float) -> str:
    """A row for each name, a bar for each time."""
    rows = list(dict.fromkeys(span.row for span in spans))
    height = 20 * len(rows) + 32
    left = 260
    scale = _scale(first_ms, last_ms, left, WIDTH - RIGHT)
    parts = [_frame(height)]
    for order, row in enumerate(rows):
        y = 8 + 20 * order
        parts.append(_text(left - 8, y + 12, _cut(row, 42), "end"))
        parts.append(
            f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y + 18}" y2="{y + 18}"/>'
        )
    for span in spans:
        x, end = scale(span.from_ms), scale(span.to_ms)
        y = 8 + 20 * rows.index(span.row)
        parts.append(
            f'<rect class="{escape(span.kind)}" x="{x:.1f}" y="{y + 2}" '
            f'width="{max(2.0, end - x):.1f}" height="13"><title>{escape(span.text)}</title></rect>'
        )
    return "".join([*parts, *_x_axis(first_ms, last_ms, height - 24, left), "</svg>"])


def ranges(rows: Sequence[Range], show: Show) -> str:
    """From p50 to p99, p95 marked, on a logarithmic axis."""
    height = 20 * len(rows) + 32
    left = 260
    low, high = powers([value for row in rows for value in (row.p50, row.p99)])
    scale = _scale(low, high, left, WIDTH - RIGHT)
    at = _logarithmic(scale, 10.0**low)
    parts = [_frame(height)]
    for power in range(low, high + 1):
        x = scale(power)
        anchor = "end" if power == high else "middle"
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 26}"/>')
        parts.append(_text(x, height - 8, _power(power), anchor))
    for order, row in enumerate(rows):
        y = 8 + 20 * order
        title = f"{row.name}: p50 {show(row.p50)}, p95 {show(row.p95)}, p99 {show(row.p99)}"
        first, middle, last = at(row.p50), at(row.p95), at(row.p99)
        parts += [
            _text(left - 8, y + 12, _cut(row.name, 42), "end"),
            f"<g><title>{escape(title)}</title>",
            f'<rect class="range" x="{first:.1f}" y="{y + 4}" '
            f'width="{max(2.0, last - first):.1f}" height="9"/>',
            f'<rect class="mark" x="{middle - 1.5:.1f}" y="{y + 1}" width="3" height="15"/></g>',
        ]
    return "".join([*parts, "</svg>"])


def legend(series: Sequence[Line]) -> str:
    entries = "".join(
        f'<span><i class="b{line.colour}"></i>{escape(line.name)}</span>' for line in series
    )
    return f'<p class="legend">{entries}</p>'


def y_ticks(highest: float) -> list[float]:
    """Round numbers from 0 to at least the highest value."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * nice for nice in (1, 2, 2.5, 5, 10) if unit * nice >= rough * 0.999)
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def powers(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten between which these milliseconds lie; what is below 0.1 ms is at it."""
    lowest = max(0.1, min(values, default=1.0))
    highest = max(lowest, max(values, default=1.0))
    low = math.floor(math.log10(lowest))
    return low, max(low + 1, math.ceil(math.log10(highest)))


def _frame(height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">'


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _logarithmic(scale: Callable[[float], float], low: float) -> Callable[[float], float]:
    return lambda value: scale(math.log10(max(value, low)))


def _y_axis(ticks: Sequence[tuple[float, str]]) -> list[str]:
    """Of places and texts."""
    parts = []
    for y, text in ticks:
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(LEFT - 6, y + 4, text, "end"))
    return parts


def _x_axis(first_ms: float, last_ms: float, y: float, left: float = LEFT) -> list[str]:
    """Round times, with the day where there are several."""
    span_s = (last_ms - first_ms) / 1000
    form = "%d %b %H:%M" if span_s > 86_400 else "%H:%M" if span_s > 600 else "%H:%M:%S"
    scale = _scale(first_ms, last_ms, left, WIDTH - RIGHT)
    return [
        _text(scale(at_ms), y + 18, f"{datetime.fromtimestamp(at_ms / 1000, UTC):{form}}", "middle")
        for at_ms in x_ticks(first_ms, last_ms)
        # A text in the middle of its tick must not leave the picture.
        if left <= scale(at_ms) <= WIDTH - RIGHT - 20
    ]


def x_ticks(first_ms: float, last_ms: float) -> list[int]:
    """Round times, at most eight of them."""
    span_ms = max(1.0, last_ms - first_ms)
    days = math.ceil(span_ms / 86_400_000 / 8)
    step = next((s for s in TICKS_S if span_ms / (s * 1000) <= 8), 86_400 * days) * 1000
    return list(range(math.ceil(first_ms / step) * step, int(last_ms) + 1, step))


def _pieces(
    points: Sequence[tuple[float, float]], step_ms: float
) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if pieces and point[0] - pieces[-1][-1][0] <= 1.5 * step_ms:
            pieces[-1].append(point)
        else:
            pieces.append([point])
    return pieces


def _path(
    points: Sequence[tuple[float, float]],
    scale_x: Callable[[float], float],
    scale_y: Callable[[float], float],
    colour: int,
) -> str:
    if len(points) == 1:
        (x, y) = points[0]
        return f'<circle class="f{colour}" cx="{scale_x(x):.1f}" cy="{scale_y(y):.1f}" r="2.5"/>'
    corners = " ".join(f"{scale_x(x):.1f},{scale_y(y):.1f}" for x, y in points)
    return f'<polyline class="l{colour}" points="{corners}"/>'


def _dots(
    line: Line,
    points: Sequence[tuple[float, float]],
    scale_x: Callable[[float], float],
    scale_y: Callable[[float], float],
    show: Show,
) -> list[str]:
    """Invisible, and larger than the line: what a pointer rests on says its value."""
    return [
        f'<circle class="dot" cx="{scale_x(x):.1f}" cy="{scale_y(y):.1f}" r="5">'
        f"<title>{escape(line.name)}: {escape(show(y))} at "
        f"{datetime.fromtimestamp(x / 1000, UTC):%Y-%m-%d %H:%M:%S}</title></circle>"
        for x, y in points
    ]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _power(power: int) -> str:
    return f"{10 ** (power - 3):,} s" if power >= 3 else f"{10.0**power:g} ms"


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _colours(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


_LINES: Final = "".join(
    f".l{n}{{stroke:var(--c{n});fill:none;stroke-width:1.8;stroke-linejoin:round}}"
    f".f{n}{{fill:var(--c{n})}}.b{n}{{background:var(--c{n})}}"
    for n in range(COLOURS)
)

STYLE: Final = (
    f":root{{--ink:#1f2937;--soft:#6b7280;--paper:#fff;--card:#f8fafc;--grid:#e5e7eb;{_colours(LIGHT)}}}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--paper:#111827;"
    f"--card:#1f2937;--grid:#374151;{_colours(DARK)}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1060px;padding:24px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 6px}
p{margin:4px 0 10px}.soft,.legend{color:var(--soft);font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0}
.tile{background:var(--card);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:22px;line-height:1.2}.tile span{color:var(--soft);font-size:13px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--grid);stroke-width:1}.dot{fill:transparent}
.range{fill:var(--c0);opacity:.45}.mark{fill:var(--c0)}
.breaker{fill:var(--c1)}.store{fill:var(--c2)}.daemon{fill:var(--c4)}
.legend span{margin-right:16px;white-space:nowrap}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:right;padding:5px 8px;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--soft);font-weight:600}
td.t,th.t{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:9em}
li{margin:4px 0}code{font-size:13px}
.up{color:var(--c2);font-weight:600}
""" + _LINES
)
