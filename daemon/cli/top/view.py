"""The contents of `forebay top` as plain values: rows, columns and sentences.

A value that the daemon does not report is shown as a dash. Only `print_once` writes: it prints one
screen as text that can be piped, mailed and searched.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from daemon.cli.client import open_console
from daemon.cli.dead.groups import Grouped
from daemon.cli.renderings import describe_breaker, queue_state
from daemon.cli.stats.sampling import WHOLE, Asker, Rates, Sample, rates_between

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN: Final = "–"
ROWS_MAX: Final = 500
"""At most this many rows are drawn; a filter finds the others."""
SORT_MARK: Final = " ▼"
BESIDE: Final = 2
"""The space between columns."""
GROUPS_SHOWN: Final = 5
LONG_S: Final = 30 * 86400.0
"""Forecasts further away are not shown."""


@dataclass(frozen=True, slots=True)
class QueueRow:
    name: str
    state: str
    """running, paused, …"""
    tier: str
    """Where new runs go: warm or cold."""
    handler: str
    destination: str
    breaker: str
    """The state of its destination's breaker; empty if it has none."""
    in_s: float | None
    out_s: float | None
    held: int
    warm: int
    cold: int
    running: int
    scheduled: int
    spooled: int
    dead: int
    oldest_s: float | None
    workers: int | None
    busy: int

    @property
    def is_in_trouble(self) -> bool:
        return self.breaker in ("open", "half_open")


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    text: Callable[[QueueRow], str]
    rank: Callable[[QueueRow], Any]
    """The sort key; the greatest comes first, except for texts."""
    matters: int
    """If there is no room for all columns, those with the greatest number are left out first."""
    is_number: bool = True


def make_rows(sample: Sample, rates: Mapping[str, Rates]) -> list[QueueRow]:
    """One row per queue that the daemon knows, by name."""
    names = sorted({*sample.report["queues"], *sample.queues})
    return [make_row(name, sample, rates.get(name)) for name in names]


def make_row(name: str, sample: Sample, rates: Rates | None) -> QueueRow:
    books, queue = sample.books(name), sample.queues.get(name, {})
    workers = sample.report.get("workers", {}).get(name)
    destination = workers["destination"] if workers else ""
    breaker = sample.report.get("breakers", {}).get(destination, {})
    oldest_ms = sample.report.get("oldest_ms", {}).get(name)
    return QueueRow(
        name=name,
        state=queue_state(dict(queue)) if queue else UNKNOWN,
        tier=sample.report.get("tiers", {}).get(name, "warm"),
        handler=queue.get("settings", {}).get("handler", {}).get("type", ""),
        destination=destination,
        breaker=breaker.get("state", ""),
        in_s=rates.accepted if rates else None,
        out_s=rates.delivered if rates else None,
        **{part: books.get(part, 0) for part in PARTS},
        oldest_s=None if oldest_ms is None else max(0.0, (sample.at_ms - oldest_ms) / 1000),
        workers=workers["count"] if workers else None,
        busy=workers["busy"] if workers else 0,
    )


PARTS: Final = ("held", "warm", "cold", "running", "scheduled", "spooled", "dead")


def choose_rows(
    rows: Iterable[QueueRow], filter_text: str, column: Column, *, is_upward: bool
) -> list[QueueRow]:
    """The rows whose name, state, handler, destination or breaker contains the text, sorted.
    Equal rows stay in the order of their names."""
    wanted = filter_text.casefold().strip()
    found = [
        row
        for row in rows
        if not wanted
        or any(
            wanted in text.casefold()
            for text in (row.name, row.state, row.handler, row.destination, row.breaker)
        )
    ]
    return sorted(found, key=column.rank, reverse=column.is_number is not is_upward)


def choose_columns(rows: Sequence[QueueRow], width: int) -> list[Column]:
    """The most important columns that fit, in their usual order."""
    left = width
    chosen: set[str] = set()
    for column in sorted(COLUMNS, key=lambda column: column.matters):
        title = len(column.title) + len(SORT_MARK)
        left -= max(title, max((len(column.text(row)) for row in rows), default=0)) + BESIDE
        if left < 0 and chosen:
            break
        chosen.add(column.key)
    return [column for column in COLUMNS if column.key in chosen]


def workers_text(row: QueueRow) -> str:
    if row.workers is None:
        return "pull" if row.handler == "pull" else UNKNOWN
    return f"{row.busy}/{row.workers}"


def breaker_text(row: QueueRow) -> str:
    return row.breaker.replace("_", " ") or UNKNOWN


def count_text(count: int) -> str:
    """In full while that is readable, then in millions."""
    return f"{count:,}" if count < 10_000_000 else f"{count / 1e6:,.1f} M"


def rate_text(rate: float | None) -> str:
    if rate is None:
        return "…"
    return f"{rate:,.1f}" if 0 < rate < 10 else f"{rate:,.0f}"


def span_text(seconds: float | None) -> str:
    """A duration in a suitable unit: `45 s`, `12 min`, `3.5 h`, `2 d`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"


def size_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def bar_text(share: float, width: int) -> str:
    """A bar in eighths of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, part = divmod(eighths, 8)
    bar = "█" * whole + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return bar.ljust(width, "·")


def spool_text(sample: Sample, width: int) -> str:
    """How full the spool is, and when it will be full or empty at the present rate."""
    spool, coming = sample.report["spool"], sample.report.get("forecast", {})
    held, limit = spool["bytes"], spool.get("max_bytes", 0)
    share = held / limit if limit else 0.0
    words = [f"{bar_text(share, width)} {share:.0%}", f"{size_text(held)} of {size_text(limit)}"]
    if coming.get("seconds"):
        words.append(f"{coming['spool']} in {span_text(coming['seconds'])}")
    words.append(f"disk: {size_text(spool['free_bytes'])} free")
    return "  ".join(words)


def stores_away(sample: Sample) -> list[str]:
    return sorted(store for store, is_up in sample.report.get("stores", {}).items() if not is_up)


def stores_text(sample: Sample) -> str:
    """Which stores are usable; for the disk that means room for new work."""
    stores, away = sample.report.get("stores", {}), stores_away(sample)
    if not stores:
        return UNKNOWN
    words = ["the disk is full" if store == "disk" else f"{store} is unavailable" for store in away]
    return ", ".join(words) or f"{', '.join(sorted(stores))} available"


def totals_text(sample: Sample, rates: Mapping[str, Rates]) -> str:
    """The counts of all queues together."""
    books, rate = sample.books(WHOLE), rates.get(WHOLE)
    taken, sent = (rate.accepted, rate.delivered) if rate else (None, None)
    words = [
        f"accepted {count_text(books['accepted'])} ({rate_text(taken)}/s)",
        f"delivered {count_text(books['delivered'])} ({rate_text(sent)}/s)",
        f"held {count_text(books['held'])}",
        f"dead {count_text(books['dead'])}",
    ]
    words += [
        f"{name} {count_text(books[name])}" for name in ("dropped", "lost", "staged") if books[name]
    ]
    return "   ".join(words)


def backlog_text(row: QueueRow) -> str:
    """The forecast for the chosen queue at its present rate."""
    if row.in_s is None or row.out_s is None or not row.held:
        return ""
    grows = row.in_s - row.out_s
    if grows < 0 and row.held <= LONG_S * -grows:
        return f"empty in {span_text(row.held / -grows)}"
    return f"grows by {rate_text(grows)}/s" if grows >= 1 else ""


def breaker_lines(sample: Sample) -> list[tuple[str, str]]:
    """Destinations whose breaker is not closed, with its state; the open ones first."""
    found = [
        (breaker["destination"], describe_breaker(breaker, sample.at_ms))
        for breaker in sample.breakers
        if breaker["state"] != "closed"
    ]
    return sorted(found, key=lambda pair: (not pair[1].startswith("open"), pair[0]))


def breakers_text(sample: Sample) -> str:
    lines = breaker_lines(sample)
    if not sample.breakers:
        return "none yet"
    if not lines:
        return f"all {len(sample.breakers)} closed" if len(sample.breakers) > 1 else "closed"
    shown = "; ".join(f"{destination} {state}" for destination, state in lines[:3])
    return shown + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def _number(key: str, title: str, matters: int) -> Column:
    def text(row: QueueRow) -> str:
        return count_text(getattr(row, key))

    return Column(key, title, text, lambda row: getattr(row, key), matters)


COLUMNS: Final[Sequence[Column]] = (
    Column("queue", "queue", lambda row: row.name, lambda row: row.name, 0, is_number=False),
    Column("state", "state", lambda row: row.state, lambda row: row.state, 1, is_number=False),
    Column("in_s", "in/s", lambda row: rate_text(row.in_s), lambda row: row.in_s or 0, 4),
    Column("out_s", "out/s", lambda row: rate_text(row.out_s), lambda row: row.out_s or 0, 3),
    _number("held", "held", 2),
    _number("warm", "warm", 7),
    _number("cold", "cold", 8),
    _number("running", "running", 9),
    _number("scheduled", "later", 12),
    _number("spooled", "spooled", 13),
    _number("dead", "dead", 5),
    Column(
        "oldest", "oldest", lambda row: span_text(row.oldest_s), lambda row: row.oldest_s or 0, 6
    ),
    Column("workers", "workers", workers_text, lambda row: row.busy, 11),
    Column("breaker", "breaker", breaker_text, lambda row: row.breaker, 10, is_number=False),
    Column("tier", "new go", lambda row: row.tier, lambda row: row.tier, 14, is_number=False),
)


def column_of(name: str) -> Column:
    """The column with this key or title. Raises ValueError if there is none."""
    for column in COLUMNS:
        if name in (column.key, column.title):
            return column
    known = ", ".join(column.key for column in COLUMNS)
    raise ValueError(f"one of {known}, not {name!r}")


def print_once(asker: Asker, first: Sample, last: Sample, filter_text: str, column: Column) -> None:
    console = open_console()
    rates = rates_between(first, last)
    rows = choose_rows(make_rows(last, rates), filter_text, column, is_upward=False)
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.at_ms / 1000))
    typer.echo(f"forebay  {asker.path}  {clock}")
    typer.echo(totals_text(last, rates))
    typer.echo(f"spool     {spool_text(last, 20)}")
    typer.echo(f"breakers  {breakers_text(last)}")
    typer.echo(f"stores    {stores_text(last)}")
    typer.echo()
    console.print(queue_table(rows, console.width if sys.stdout.isatty() else None))
    for row in rows:
        if row.dead:
            for line in group_lines(row, asker.dead_groups(row.name)):
                typer.echo(line)


def queue_table(rows: list[QueueRow], width: int | None) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    columns = COLUMNS if width is None else choose_columns(rows, width)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.is_number else "left", no_wrap=True
        )
    for row in rows:
        table.add_row(*(escape(column.text(row)) for column in columns))
    return table


def group_lines(row: QueueRow, found: Grouped) -> list[str]:
    """The dead letters of a queue, by error."""
    groups = found.groups
    lines = ["", f"dead letters of {row.name}"]
    lines += [f"{group.count:>8,}  {group.error}" for group in groups[:GROUPS_SHOWN]]
    if len(groups) > GROUPS_SHOWN:
        more = len(groups) - GROUPS_SHOWN
        lines.append(f"          and {more} more kinds: forebay dead groups --queue {row.name}")
    if not found.is_complete:
        lines.append(f"          counts cover the {found.letters:,} oldest of {row.dead:,}")
    return lines
