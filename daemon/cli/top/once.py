"""`forebay top --once`: one screen, as text that can be piped, mailed and searched."""

import sys
import time
from typing import TYPE_CHECKING

import typer

from daemon.cli.client import open_console
from daemon.cli.dead.groups import Grouped
from daemon.cli.stats.sampling import Asker, Sample, rates_between
from daemon.cli.top.view import (
    COLUMNS,
    Column,
    QueueRow,
    breakers_text,
    choose_columns,
    choose_rows,
    make_rows,
    spool_text,
    stores_text,
    totals_text,
)

if TYPE_CHECKING:
    from rich.table import Table

GROUPS_SHOWN = 5


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
