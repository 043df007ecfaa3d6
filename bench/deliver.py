"""`make bench-deliver`: delivery, beside a peer, a limit or itself in the same run.

docs/benchmarks.md says what is measured and what the columns mean.
"""

from collections.abc import Callable
from typing import Annotated, Final

import typer

from bench.command import measure
from bench.deliver_end_to_end import end_to_end
from bench.deliver_http import to_http
from bench.deliver_isolation import isolation
from bench.deliver_overflow import overflow
from bench.deliver_pull import consumers
from bench.figures import Row
from bench.plan import Plan

BENCHMARKS: Final[dict[str, Callable[[Plan], list[Row]]]] = {
    "a": end_to_end,
    "b": to_http,
    "c": overflow,
    "d": isolation,
    "e": consumers,
}


def main(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[abcde]",
            help="Which to run: a end to end and Redis, b http, c overflow, d isolation, "
            "e consumers. All by default.",
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
    plan = Plan(seconds, rounds, is_quick=quick)
    measure("Delivery", BENCHMARKS, rows, plan, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
