"""`forebay stats`: item counts of the daemon and of every queue."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.client import DaemonSocket, open_control, print_json, print_table

if TYPE_CHECKING:
    from daemon.cli.stats.sampling import Asker

EVERY_S: Final = 2.0
EXAMPLE: Final = (
    "Examples: [bold]forebay stats[/bold]; [bold]forebay stats --watch[/bold] with rates, until "
    "Ctrl-C; [bold]forebay stats --watch 60 --json >> books.ndjson[/bold] keeps a record."
)


def stats(
    every: Annotated[
        float | None,
        typer.Argument(
            metavar="SECONDS",
            min=0.1,
            max=86400,
            help="With --watch: seconds between reports. \\[default: 2]",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Repeat, with rates: in place on a terminal, as lines of "
            "[bold]key=value[/bold] in a pipe.",
        ),
    ] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", min=1, help="With --watch: end after N reports."
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME",
            help="Only this queue: items by state, failed attempts, and how long items take.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the report as JSON; with --watch one line per queue."),
    ] = False,
    socket: DaemonSocket = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Give up after this long.")
    ] = 10,
) -> None:
    """Show how many items were accepted, and where they are now.

    accepted = delivered + dead + dropped + deleted + lost + held, and held = spooled + scheduled +
    warm + cold + running. lost counts items destroyed by damage on disk. Staged items are in none
    of these until their write is published: see [bold]forebay writes ls[/bold]. failures counts
    failed attempts since the daemon started; business counts those caused by the items
    themselves. For a live screen: [bold]forebay top[/bold].
    """
    if not watch and (every is not None or count is not None):
        raise typer.BadParameter("SECONDS and --count go with --watch")
    if queue is not None:
        if watch:
            raise typer.BadParameter("--queue does not go with --watch")
        _print_queue(queue, socket, as_json)
        return
    from daemon.cli.stats.sampling import Asker

    asker = Asker(socket, timeout)
    try:
        if watch:
            from daemon.cli.stats.view import watch as keep_watching

            keep_watching(asker, every or EVERY_S, count, as_json=as_json)
        else:
            _print(asker, as_json)
    except KeyboardInterrupt:
        # The usual end of watching.
        if not watch:
            raise
    finally:
        asker.close()


def _print(asker: "Asker", as_json: bool) -> None:
    report = asker.report().report
    if as_json:
        import json

        typer.echo(json.dumps(report, indent=2))
    else:
        from daemon.cli.stats.view import stats_table

        print_table(stats_table(report))


def _print_queue(queue: str, socket: str | None, as_json: bool) -> None:
    with open_control(socket) as control:
        found = control.queue_stats(queue)
    if as_json:
        print_json(found)
        return
    for state, items in found["states"].items():
        typer.echo(f"{state:<12} {items:,}")
    failed = found["exceptions"]
    typer.echo(
        f"failed       {failed['application']:,} application, {failed['business']:,} business"
    )
    took = found["processing"]
    if took is not None:
        times = ", ".join(f"{name} {took[f'{name}_ms']:,.1f}" for name in ("p50", "p95", "p99"))
        typer.echo(f"took         {took['average_ms']:,.1f} ms on average, {times}")
