"""`make bench-spark`: the Spark sink and source, beside what else a job could do, in one run.

docs/benchmarks.md says what is measured and what the columns mean.
"""

from functools import partial
from typing import Annotated, Final

import typer

from bench.command import measure
from bench.plan import Plan
from bench.spark import session
from bench.spark.draining import draining
from bench.spark.postgres import find_jar
from bench.spark.writing import writing

ROWS: Final = 2_000_000
DRAINED: Final = 2
"""Times as many rows are drained: a stream takes 1 s to start, in which Spark's Python compiles the
modules of Spark's own archive, and a queue is drained for longer than that."""
QUICK_ROWS: Final = 100_000


def main(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ab]",
            help="Which to run: a writing, beside a discarding socket, JDBC and Redis; "
            "b draining to Parquet. All by default.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of which the medians are shown.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_ROWS:,} rows, to see that it works.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="All rounds as JSON instead of a table.")
    ] = False,
) -> None:
    """Measure the Spark sink and source beside the limits of this machine."""
    count = QUICK_ROWS if quick else ROWS
    spark = session.start(find_jar())
    benchmarks = {
        "a": partial(writing, spark, count),
        "b": partial(draining, spark, DRAINED * count),
    }
    measure("Spark, local[2]", benchmarks, rows, Plan(0, rounds, is_quick=quick), as_json=as_json)
    spark.stop()


if __name__ == "__main__":
    typer.run(main)
