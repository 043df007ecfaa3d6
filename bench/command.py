"""What the benchmark commands have in common: choosing rows, measuring, and the table."""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import typer
from rich.console import Console

from bench.figures import Row
from bench.plan import Plan
from bench.table import print_table

BUSY_LOAD: Final = 0.3
"""A load per core above this disturbs the figures."""

Benchmarks = Mapping[str, Callable[[Plan], list[Row]]]


def measure(
    what: str, benchmarks: Benchmarks, rows: Sequence[str] | None, plan: Plan, *, as_json: bool
) -> None:
    """Runs the chosen benchmarks (all by default) and prints what they found."""
    chosen = list("".join(rows)) if rows else list(benchmarks)
    unknown = set(chosen) - set(benchmarks)
    if unknown:
        names = sorted(benchmarks)
        raise typer.BadParameter(
            f"no benchmark {', '.join(sorted(unknown))}: {names[0]} to {names[-1]}"
        )
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    if load > BUSY_LOAD * cores:
        print(f"the machine is busy (load {load:.1f}): trust ratios only", file=sys.stderr)
    found = [row for name in chosen for row in benchmarks[name](plan)]
    if as_json:
        print(json.dumps([row.as_dict() for row in found], indent=1))
        return
    title = (
        f"{what}: {cores} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load:.1f} at the start, "
        f"medians of {plan.rounds}{f' × {plan.seconds:g} s' if plan.seconds else ''}"
    )
    width = None if sys.stdout.isatty() else 200
    print_table(title, found, Console(width=width))
