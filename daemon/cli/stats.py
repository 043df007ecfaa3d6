"""`forebay stats`: the books, for the daemon and for every queue."""

import json
from typing import Annotated, Any, Final

import typer

COLUMNS: Final = (
    "accepted",
    "delivered",
    "dead",
    "dropped",
    "deleted",
    "duplicate",
    "held",
    "spooled",
    "scheduled",
    "warm",
    "cold",
    "running",
    "staged",
)


def stats(
    as_json: Annotated[bool, typer.Option("--json", help="The whole report, as JSON.")] = False,
    socket: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The daemon's socket. \\[env: FOREBAY_SOCKET]"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Give up after that long.")
    ] = 10,
) -> None:
    """Show how many items came in, and what became of them.

    accepted = delivered + dead + dropped + deleted + held, and held = spooled + scheduled + warm +
    cold + running. What is staged is in none of them until its write is published: see
    [bold]forebay writes ls[/bold].
    """
    from forebay.client import connect

    with connect(socket, timeout) as client:
        report = client.stats()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(report)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = {**report.get("queues", {}), "all queues": report.get("daemon", {})}
    # A column that is 0 in every row says nothing that the others do not.
    shown = [
        name
        for name in COLUMNS
        if name in ("accepted", "delivered", "held") or any(row.get(name) for row in rows.values())
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("queue", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for queue, row in rows.items():
        if queue == "all queues":
            table.add_section()
        table.add_row(queue, *(f"{row.get(name, 0):,}" for name in shown))
    Console().print(table)
