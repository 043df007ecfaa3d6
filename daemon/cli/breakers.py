"""`forebay breakers`: lists the circuit breakers of destinations; opens and closes them by hand."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from daemon.cli.client import DaemonSocket, Json, now_ms, open_client, print_json, print_table

if TYPE_CHECKING:
    from rich.table import Table


app = typer.Typer(
    no_args_is_help=True,
    help="Circuit breakers: one per destination. They stop sending to a destination that is down.",
    epilog="A breaker is [bold]closed[/bold] while deliveries succeed. After "
    "[bold]breaker.threshold[/bold] consecutive failures it [bold]opens[/bold]: nothing is sent, "
    "and no item uses up an attempt. After [bold]breaker.reset_timeout[/bold] it is "
    "[bold]half open[/bold]: a few items are sent as a trial. Their outcome closes the breaker or "
    "opens it again.",
)

Destination = Annotated[
    str,
    typer.Argument(
        metavar="DESTINATION",
        help="A destination as [bold]forebay breakers ls[/bold] lists it, or the name of a queue "
        "that delivers there.",
    ),
]
State = Literal["open", "closed", "auto"]


@app.command(epilog="Example: [bold]forebay breakers ls[/bold]")
def ls(as_json: Json = False, socket: DaemonSocket = None) -> None:
    """List the breakers: state, consecutive failures, time of the next trial, and last error.

    A destination is listed once a queue has delivered to it. Queues of type pull have no
    destination.
    """
    with open_client(socket) as client:
        breakers = client.control("breakers.list")["breakers"]
        senders = queues_by_destination(client.stats())
    if as_json:
        for breaker in breakers:
            print_json(breaker | {"queues": senders.get(breaker["destination"], [])})
    elif breakers:
        print_table(_table(breakers, senders, now_ms()))
    else:
        typer.echo("no breakers: no queue has delivered anything yet", err=True)


@app.command(
    "open",
    epilog="Examples: [bold]forebay breakers open https://crm.example[/bold]; "
    "[bold]forebay breakers open crm[/bold] names a queue that delivers there.",
)
def open_(destination: Destination, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Stop sending to a destination until [bold]close[/bold] or [bold]auto[/bold].

    For maintenance on the other side: all queues that deliver there wait. Pushes are accepted,
    and no item uses up an attempt. Sends in flight are finished. A restart of the daemon forgets
    this; [bold]forebay pause[/bold] holds a queue across restarts.
    """
    _force(destination, "open", as_json, socket)


@app.command(epilog="Example: [bold]forebay breakers close https://crm.example[/bold]")
def close(destination: Destination, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Resume sending at once, without a trial, because you know that the destination is up.

    Earlier failures are forgotten. The breaker opens again after breaker.threshold new failures.
    """
    _force(destination, "closed", as_json, socket)


@app.command(epilog="Example: [bold]forebay breakers auto https://crm.example[/bold]")
def auto(destination: Destination, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Undo an earlier [bold]open[/bold]: the breaker decides from the outcome of sends again.

    A breaker that opened because of failures stays as it is.
    """
    _force(destination, "auto", as_json, socket)


def queues_by_destination(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """For each destination, the queues whose workers deliver to it."""
    found: dict[str, list[str]] = {}
    for queue, workers in report.get("workers", {}).items():
        found.setdefault(workers["destination"], []).append(queue)
    return found


def find_destination(given: str, senders: Mapping[str, list[str]]) -> str:
    """The destination of a queue, if `given` names a queue that delivers; otherwise `given`."""
    if given not in senders:
        for destination, queues in senders.items():
            if given in queues:
                return destination
    return given


def describe(breaker: Mapping[str, Any], at_ms: int) -> str:
    """The state of a breaker, in a few words."""
    if breaker["forced"]:
        return "open, by an operator"
    if breaker["state"] == "open" and breaker["open_until_ms"] is not None:
        seconds = max(0, round((breaker["open_until_ms"] - at_ms) / 1000))
        return f"open, tried again in {seconds} s"
    return str(breaker["state"]).replace("_", " ")


def _force(given: str, state: State, as_json: bool, socket: str | None) -> None:
    with open_client(socket) as client:
        destination = find_destination(given, queues_by_destination(client.stats()))
        breaker = client.control("breakers.force", destination=destination, state=state)
    if as_json:
        print_json(breaker)
    else:
        typer.echo(f"{breaker['destination']} is {describe(breaker, now_ms())}")


def _table(breakers: list[dict[str, Any]], senders: Mapping[str, list[str]], at_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("destination", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("failures", justify="right", no_wrap=True)
    table.add_column("queues", no_wrap=True, overflow="ellipsis")
    table.add_column("last error", no_wrap=True, overflow="ellipsis")
    for breaker in breakers:
        table.add_row(
            escape(breaker["destination"]),
            describe(breaker, at_ms),
            str(breaker["failures"]),
            escape(", ".join(senders.get(breaker["destination"], []))),
            escape(" ".join(breaker.get("last_error", "").split())),
        )
    return table
