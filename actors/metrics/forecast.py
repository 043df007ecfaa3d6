"""When the spool will be full or empty if the present trend continues. Pure.

The line through the last minutes (least squares, so that one burst does not swing it) is extended
to the limit or to zero. A line that is flat, or that reaches neither within a week, is `steady`: a
number would only pretend to know. Trends do not last; an estimate is worth as much as the minutes
it is made from.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

WINDOW_S: Final = 300.0
SPAN_MIN_S: Final = 15.0
"""A shorter span says nothing about a direction."""
HORIZON_S: Final = 7 * 86400.0

Direction = Literal["full", "empty", "steady", "unknown"]


class Forecast(NamedTuple):
    direction: Direction
    """`full` and `empty` name the trend; `unknown`: not watched for long enough."""
    seconds: float | None
    """Seconds until then; 0: now. None if it is steady or unknown."""
    bytes_a_second: float
    """How fast it fills; negative: it empties."""


def forecast(points: Sequence[tuple[float, float]], limit: float) -> Forecast:
    """`points` are (seconds, bytes used), oldest first; those older than the window are left out.

    `limit` is the size at which it is full; 0: no limit.
    """
    if not points:
        return Forecast("unknown", None, 0.0)
    at_s, used = points[-1]
    points = [point for point in points if point[0] >= at_s - WINDOW_S]
    if len(points) < 3 or at_s - points[0][0] < SPAN_MIN_S:
        return Forecast("unknown", None, 0.0)
    slope = _slope(points)
    if limit and used >= limit and slope >= 0:
        return Forecast("full", 0.0, slope)
    if used <= 0 and slope <= 0:
        return Forecast("empty", 0.0, slope)
    if slope > 0 and limit:
        return _towards("full", (limit - used) / slope, slope)
    if slope < 0:
        return _towards("empty", used / -slope, slope)
    return Forecast("steady", None, slope)


def _towards(direction: Direction, seconds: float, slope: float) -> Forecast:
    if seconds > HORIZON_S:
        return Forecast("steady", None, slope)
    return Forecast(direction, max(0.0, seconds), slope)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line."""
    count = len(points)
    mean_at = sum(at for at, _ in points) / count
    mean_used = sum(used for _, used in points) / count
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    if not spread:
        return 0.0
    return sum((at - mean_at) * (used - mean_used) for at, used in points) / spread
