"""The table that a benchmark prints: forebay, the limit beside it, the goal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.figures import Goal, Row, Samples

MARKS = {True: "[green]met[/]", False: "[bold red]short[/]", None: ""}


def print_table(title: str, rows: Sequence[Row], console: Console) -> None:
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("measured", overflow="fold", min_width=24)
    for name in ("forebay", "±", "syncs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", overflow="fold", min_width=16)
    for name in ("", "±", "syncs", "ratio", "goal", ""):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        if before and row.group != before:
            table.add_section()
        table.add_row(*_cells(row))
        before = row.group
    console.print(table)


def _cells(row: Row) -> list[str]:
    limit, ratio = row.limit, row.ratio
    return [
        row.group,
        row.what,
        f"{_number(row.ours.median, row.unit)} {row.unit}",
        _spread(row.ours),
        _syncs(row.syncs_per_1000),
        row.limit_name,
        "" if limit is None else _number(limit.median, row.unit),
        "" if limit is None else _spread(limit),
        "" if limit is None else _syncs(row.limit_syncs_per_1000),
        "" if ratio is None else f"{ratio.median:.2f}",
        "" if row.goal is None else _goal(row.goal, row.unit),
        MARKS[row.is_met],
    ]


def _number(value: float, unit: str) -> str:
    if unit == "items/s":
        return f"{round(value, -3):,.0f}"
    return f"{value:,.3f}" if unit == "s" else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _spread(samples: Samples) -> str:
    return f"{samples.spread / 2:.0%}" if len(samples.values) > 1 else ""


def _syncs(per_1000: float | None) -> str:
    return "" if per_1000 is None else f"{per_1000:,.2f}" if per_1000 < 100 else f"{per_1000:,.0f}"


def _goal(goal: Goal, unit: str) -> str:
    parts = []
    if goal.value_min is not None:
        parts.append(f"≥ {_plain(goal.value_min)} {unit}")
    if goal.value_max is not None:
        parts.append(f"≤ {_plain(goal.value_max)} {unit}")
    if goal.ratio_min is not None:
        parts.append(f"≥ {_plain(goal.ratio_min)} ×")
    if goal.ratio_max is not None:
        parts.append(f"≤ {_plain(goal.ratio_max)} ×")
    return ", ".join(parts)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
