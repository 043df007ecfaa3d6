"""`make bench-deliver`: delivery, beside a peer, a limit or itself in the same run.

docs/benchmarks.md says what is measured and what the columns mean.
"""

import json
import os
import platform
import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.deliver_end_to_end import end_to_end
from bench.deliver_http import to_http
from bench.deliver_isolation import isolation
from bench.deliver_overflow import overflow
from bench.figures import Row
from bench.intake import BUSY_LOAD
from bench.plan import Plan
from bench.table import print_table

BENCHMARKS: Final[dict[str, Callable[[Plan], list[Row]]]] = {
    "a": end_to_end,
    "b": to_http,
    "c": overflow,
    "d": isolation,
}


def main(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[abcd]",
            help="Which to run: a end to end and Redis, b http, c overflow, d isolation. "
            "All by default.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="For each contender in each round.")
    ] = 3.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of which the medians are shown.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller overflow, to see that it works.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="All rounds as JSON instead of a table.")
    ] = False,
) -> None:
    """Measure delivery beside the limits of this machine."""
    chosen = list("".join(rows)) if rows else list(BENCHMARKS)
    unknown = set(chosen) - set(BENCHMARKS)
    if unknown:
        raise typer.BadParameter(f"no benchmark {', '.join(sorted(unknown))}: a to d")
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    if load > BUSY_LOAD * cores:
        print(f"the machine is busy (load {load:.1f}): trust ratios only", file=sys.stderr)
    plan = Plan(seconds, rounds, is_quick=quick)
    found = [row for name in chosen for row in BENCHMARKS[name](plan)]
    if as_json:
        print(json.dumps([row.as_dict() for row in found], indent=1))
        return
    title = (
        f"Delivery: {cores} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load:.1f} at the start, "
        f"medians of {rounds} × {seconds:g} s"
    )
    width = None if sys.stdout.isatty() else 200
    print_table(title, found, Console(width=width))


if __name__ == "__main__":
    typer.run(main)
