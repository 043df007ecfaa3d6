"""`make bench-intake`: durable intake, beside what the disk and the peers do in the same run.

docs/benchmarks.md says what is measured and what the columns mean.
"""

from collections.abc import Callable
from typing import Annotated, Final

import typer

from bench.command import measure
from bench.figures import Row
from bench.footprint import footprint
from bench.four_producers import four_producers
from bench.one_producer import one_producer
from bench.plan import Plan
from bench.recovery import recovery
from bench.single_push import single_push

BENCHMARKS: Final[dict[str, Callable[[Plan], list[Row]]]] = {
    "a": four_producers,
    "b": single_push,
    "c": one_producer,
    "d": recovery,
    "e": footprint,
}


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
    plan = Plan(seconds, rounds, is_quick=quick)
    measure("Durable intake", BENCHMARKS, rows, plan, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
