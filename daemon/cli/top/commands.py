"""`forebay top`: a live view of the queues in a terminal, with keys to act on them.

Uses only the Unix socket. The screen (app.py) is imported when it is needed: textual is heavy, and
no other command should pay for it.
"""

import sys
import time
from typing import Annotated, Final

import typer

from daemon.cli.client import DaemonSocket

EVERY_S: Final = 1.0
EXAMPLE: Final = (
    "Examples: [bold]forebay top[/bold]; [bold]forebay top --filter crm[/bold]; "
    "[bold]forebay top --once --sort dead[/bold] prints one screen and ends. "
    "Inside, [bold]?[/bold] lists the keys: [bold]p[/bold] pauses and resumes the chosen queue, "
    "[bold]r[/bold] retries its dead letters, [bold]/[/bold] filters, [bold]s[/bold] sorts, "
    "[bold]Enter[/bold] shows its details, [bold]q[/bold] quits."
)


def top(
    once: Annotated[
        bool,
        typer.Option("--once", help="Print one screen as text and end: for scripts and tickets."),
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", "-i", metavar="SECONDS", min=0.1, max=3600, help="Refresh interval."
        ),
    ] = EVERY_S,
    filter_text: Annotated[
        str,
        typer.Option(
            "--filter",
            "-f",
            metavar="TEXT",
            help="Only queues with this text in their name, state, handler or destination.",
        ),
    ] = "",
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            "-s",
            metavar="COLUMN",
            help="What rows are sorted by: queue, state, in_s, out_s, held, warm, cold, running, "
            "scheduled, spooled, dead, oldest, workers, breaker or tier.",
        ),
    ] = "queue",
    socket: DaemonSocket = None,
) -> None:
    """Watch queues live, pause and resume them, and retry dead letters.

    Shows counts and rates of every queue, workers, breakers, how full the spool is and when it
    will be full or empty, and the dead letters of the chosen queue by error. Rates cover the last
    seconds. If the daemon stops answering, it waits for it.
    """
    from daemon.cli.stats.sampling import Asker
    from daemon.cli.top.view import column_of

    try:
        column = column_of(sort)
    except ValueError as problem:
        raise typer.BadParameter(f"--sort is {problem}") from problem
    asker = Asker(socket)
    try:
        first = asker.sample()
        if once:
            from daemon.cli.top.view import print_once

            time.sleep(interval)
            print_once(asker, first, asker.sample(), filter_text, column)
        elif not sys.stdout.isatty():
            raise typer.BadParameter("not a terminal: use --once, or forebay stats --watch")
        else:
            from daemon.cli.top.app import TopApp

            TopApp(asker, interval, filter_text, column).run()
    finally:
        asker.close()
