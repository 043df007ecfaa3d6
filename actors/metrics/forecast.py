"""When the spool will be full, or empty, if things go on as they have. Pure.

The line through the last minutes (least squares, so that one burst does not swing it) is followed
to the limit or to nothing. A line that is flat, or that leads nowhere within a week, is `steady`:
nobody plans on that, and a number would only pretend to know. Things do not go on as they have for
long; an estimate is worth as much as the minutes it is made from.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

WINDOW_S: Final = 300.0
SPAN_MIN_S: Final = 15.0
"""Less than that says nothing about a direction."""
HORIZON_S: Final = 7 * 86400.0

Direction = Literal["full", "empty", "steady", "unknown"]


class Forecast(NamedTuple):
    direction: Direction
    """`full` and `empty` are where it is going; `unknown`: not watched for long enough."""
    seconds: float | None
    """Until then; 0: it is there. None where it is steady or unknown."""
    bytes_a_second: float
    """How fast it fills; below 0 it empties."""


def forecast(points: Sequence[tuple[float, float]], limit: float) -> Forecast:
    """`points` are (seconds, bytes used), oldest first; what is older than the window is left out.

    `limit` is where it is full; 0: there is none.
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
    """Of the line with the least squares."""
    count = len(points)
    mean_at = sum(at for at, _ in points) / count
    mean_used = sum(used for _, used in points) / count
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    if not spread:
        return 0.0
    return sum((at - mean_at) * (used - mean_used) for at, used in points) / spread
