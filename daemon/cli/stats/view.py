"""Shows the counts of `forebay stats`, for people and programs.

`watch` repeats the report with rates: in place on a terminal, as lines elsewhere. It ends with
Ctrl-C, or after --count reports. If the daemon stops answering, it says so once and waits.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import typer

from daemon.cli.client import counted, open_console, print_json
from daemon.cli.stats.sampling import WHOLE, Asker, Rates, Recent, Sample
from daemon.process.terminal import clean

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from forebay.errors import ForebayError

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

Show = Callable[[Sample, dict[str, Rates], "ForebayError | None"], None]
"""Shows a sample. With an error, the daemon is unavailable and the sample is the last one."""


def stats_table(report: Mapping[str, Any], rates: Mapping[str, Rates] | None = None) -> "Table":
    """One row per queue. With `rates`, they are shown next to the totals; a rate that is not known
    yet is shown as an ellipsis."""
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


def watch(asker: Asker, every_s: float, reports: int | None, *, as_json: bool) -> None:
    """Raises if the first sample fails."""
    from forebay.errors import ForebayError

    recent = Recent(window_s=every_s)
    sample = asker.report()
    show_all = _show_lines(as_json) if as_json or not sys.stdout.isatty() else _show_in_place(asker)
    with show_all as show:
        for number in count(1):
            recent.add(sample)
            show(sample, recent.rates(), None)
            if number == reports:
                return
            while True:
                time.sleep(every_s)
                try:
                    sample = asker.report()
                    break
                except ForebayError as problem:
                    recent.forget()
                    show(sample, {}, problem)


@contextmanager
def _show_lines(as_json: bool) -> Iterator[Show]:
    is_away = False

    def show(sample: Sample, rates: dict[str, Rates], problem: "ForebayError | None") -> None:
        nonlocal is_away
        if problem is not None:
            if not is_away:
                typer.echo(f"forebay: {problem}; waiting for it", err=True)
            is_away = True
            return
        is_away = False
        if as_json:
            for row in stats_objects(sample, rates):
                print_json(row)
        else:
            for line in stats_lines(sample, rates):
                typer.echo(line)
        sys.stdout.flush()

    yield show


@contextmanager
def _show_in_place(asker: Asker) -> Iterator[Show]:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=open_console(), auto_refresh=False) as live:

        def show(sample: Sample, rates: dict[str, Rates], problem: "ForebayError | None") -> None:
            table = stats_table(sample.report, rates)
            clock = time.strftime("%H:%M:%S", time.localtime(sample.at_ms / 1000))
            state = Text(f"{asker.path}  {clock}", style="dim")
            if problem is not None:
                gone = counted(round(time.monotonic() - sample.at_s), "second")
                why = clean(str(problem))
                state = Text(f"{why}; these figures are {gone} old", style="bold red")
                table.style = "dim"
            shown: RenderableType = Group(table, "", state)
            live.update(shown, refresh=True)

        yield show
