"""`make bench-intake`: durable intake, beside what the disk and the peers do in the same run.

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

from bench.figures import Row
from bench.footprint import footprint
from bench.four_producers import four_producers
from bench.one_producer import one_producer
from bench.plan import Plan
from bench.recovery import recovery
from bench.single_push import single_push
from bench.table import print_table

BENCHMARKS: Final[dict[str, Callable[[Plan], list[Row]]]] = {
    "a": four_producers,
    "b": single_push,
    "c": one_producer,
    "d": recovery,
    "e": footprint,
}
BUSY_LOAD: Final = 0.3
"""A load per core above this disturbs the figures."""


def main(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[abcde]",
            help="Which to run: a four producers, b one item, c one producer and Redis, "
            "d recovery, e memory and disk. All by default.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="For each contender in each round.")
    ] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of which the medians are shown.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller spools, to see that it works.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="All rounds as JSON instead of a table.")
    ] = False,
) -> None:
    """Measure durable intake beside the limits of this machine."""
    chosen = list("".join(rows)) if rows else list(BENCHMARKS)
    unknown = set(chosen) - set(BENCHMARKS)
    if unknown:
        raise typer.BadParameter(f"no benchmark {', '.join(sorted(unknown))}: a to e")
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
        f"Durable intake: {cores} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load:.1f} at the start, "
        f"medians of {rounds} × {seconds:g} s"
    )
    width = None if sys.stdout.isatty() else 200
    print_table(title, found, Console(width=width))


if __name__ == "__main__":
    typer.run(main)
