"""Numbers as people read them: counts, rates, durations, sizes, moments."""

from datetime import UTC, datetime


def number(value: float) -> str:
    return f"{value:,.1f}" if value < 10 and value != int(value) else f"{value:,.0f}"


def rate(value: float) -> str:
    """Items a second."""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def duration(milliseconds: float) -> str:
    """Two digits that matter: 250 ms, 1.5 s, 12 min."""
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
