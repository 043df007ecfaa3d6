"""Formats the counts, and with --watch the rates, for people and programs."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from daemon.cli.stats.sampling import WHOLE, Rates, Sample

if TYPE_CHECKING:
    from rich.table import Table

BOOKS: Final = (
    "accepted",
    "delivered",
    "dead",
    "dropped",
    "deleted",
    "lost",
    "duplicate",
    "held",
    "spooled",
    "scheduled",
    "warm",
    "cold",
    "running",
    "staged",
)
COLUMNS: Final = (*BOOKS, "failures", "business")
ALWAYS: Final = ("accepted", "delivered", "held")
RATED: Final = ("accepted", "delivered")
ALL_QUEUES: Final = "all queues"


def stats_table(report: Mapping[str, Any], rates: Mapping[str, Rates] | None = None) -> "Table":
    """One row per queue. With `rates`, they are shown next to the totals; empty rates are not known
    yet."""
    from rich.table import Table

    rows = _with_failures({**report.get("queues", {}), WHOLE: report.get("daemon", {})}, report)
    # Columns that are 0 in every row are left out.
    shown = [
        name for name in COLUMNS if name in ALWAYS or any(row.get(name) for row in rows.values())
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("queue", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
        if rates is not None and name in RATED:
            table.add_column("/s", justify="right", no_wrap=True, style="cyan")
    for queue, row in rows.items():
        cells = []
        for name in shown:
            cells.append(f"{row.get(name, 0):,}")
            if rates is not None and name in RATED:
                cells.append(_rate(rates.get(queue), name))
        if queue == WHOLE:
            table.add_section()
        table.add_row(queue or ALL_QUEUES, *cells)
    return table


def _with_failures(
    rows: Mapping[str, Mapping[str, int]], report: Mapping[str, Any]
) -> dict[str, dict[str, int]]:
    """Adds the failed attempts since the daemon started, and how many of them were business
    failures."""
    failed: Mapping[str, Mapping[str, int]] = report.get("failed", {})
    found = {
        queue: {"failures": sum(by.values()), "business": by.get("business", 0)}
        for queue, by in failed.items()
    }
    found[WHOLE] = {
        name: sum(each[name] for each in found.values()) for name in ("failures", "business")
    }
    return {queue: {**row, **found.get(queue, {})} for queue, row in rows.items()}


def stats_lines(sample: Sample, rates: Mapping[str, Rates]) -> Iterator[str]:
    """For programs: lines of `key=value`, one per queue, and `*` for all together."""
    moment = datetime.fromtimestamp(sample.at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for row in stats_objects(sample, rates):
        fields = " ".join(f"{key}={value}" for key, value in row.items() if key != "at_ms")
        yield f"{moment} {fields}"


def stats_objects(sample: Sample, rates: Mapping[str, Rates]) -> Iterator[dict[str, Any]]:
    for queue in (*sample.report["queues"], WHOLE):
        books, rate = sample.books(queue), rates.get(queue)
        row: dict[str, Any] = {"at_ms": sample.at_ms, "queue": queue or "*"}
        for name in BOOKS:
            row[name] = books.get(name, 0)
            if name in RATED and rate is not None:
                row[f"{name}_s"] = round(getattr(rate, name), 1)
        yield row


def _rate(rates: Rates | None, name: str) -> str:
    return "…" if rates is None else f"{getattr(rates, name):,.0f}"
