"""`forebay fleet`: lists the daemons that share a PostgreSQL; forgets one that is gone."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    DaemonSocket,
    Json,
    ago,
    counted,
    open_client,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from rich.table import Table


app = typer.Typer(
    no_args_is_help=True,
    help="The daemons that share a PostgreSQL (docs/fleet.md).",
    epilog="Every daemon writes a row every 5 s. A daemon is [bold]lost[/bold] if it has not done "
    "so for a minute: it was killed, or does not reach PostgreSQL. Start a daemon on its state "
    "directory to drain its journal.",
)

NOW_MS: Final = 15_000
"""A daemon that was seen this recently is there now."""
ID_DIGITS: Final = 12


@app.command(epilog="Example: [bold]forebay fleet ls[/bold]")
def ls(as_json: Json = False, socket: DaemonSocket = None) -> None:
    """List the daemons of the fleet, their states and rates.

    The backlog is what a daemon's journal holds and has not handed over to PostgreSQL. No other
    daemon can deliver it. For a lost daemon it is the last known one.
    """
    with open_client(socket) as client:
        found = client.control("fleet.list")
    if as_json:
        for daemon in found["daemons"]:
            print_json(daemon)
        return
    print_table(_table(found["daemons"], found["now_ms"]))
    for daemon in found["daemons"]:
        if daemon["state"] == "lost":
            typer.echo(f"forebay: {hint(daemon, found['now_ms'])}", err=True)


@app.command(
    epilog="Example: [bold]forebay fleet forget 0198c0de0a00[/bold]; the first digits of an id are "
    "enough."
)
def forget(
    daemon: Annotated[
        str,
        typer.Argument(metavar="ID", help="Its id, as [bold]forebay fleet ls[/bold] shows it."),
    ],
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Remove a daemon that is gone from the list.

    This changes the list alone. Items that the daemon has not handed over stay in its journal; if
    it starts again, it is listed again, and delivers them. Refused for a daemon that was seen
    within the last minute.
    """
    with open_client(socket) as client:
        gone = client.control("fleet.forget", daemon=daemon)
    if as_json:
        print_json(gone)
        return
    typer.echo(f"{gone['daemon']} on {gone['host']} forgotten")
    if gone["backlog"]:
        typer.echo(
            f"forebay: its journal held {counted(gone['backlog'], 'item')} when it was last seen",
            err=True,
        )


def hint(daemon: dict[str, Any], now_ms: int) -> str:
    """What is known of a lost daemon, and what to do."""
    items, seen = daemon["backlog"], ago(daemon["seen_ms"], now_ms)
    held = f"{counted(items, 'item')} not handed over" if items else "everything handed over"
    return (
        f"{daemon['host']} ({daemon['daemon'][:ID_DIGITS]}) is lost: last seen {seen} ago with "
        f"{held}, last hand-over {_when(daemon['last_hand_over_ms'], now_ms)}; "
        "start a daemon on its state directory to drain it"
    )


def short_ids(daemons: list[dict[str, Any]]) -> dict[str, str]:
    """The first digits of each id: as many as tell all of them apart."""
    ids = [daemon["daemon"] for daemon in daemons]
    digits = ID_DIGITS
    while len({id_[:digits] for id_ in ids}) < len(ids):
        digits += 1
    return {id_: id_[:digits] for id_ in ids}


def _table(daemons: list[dict[str, Any]], now_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("daemon", "host", "version", "state", "up since", "last seen"):
        table.add_column(name, no_wrap=True)
    for name in ("accepted/s", "delivered/s", "backlog"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("cannot reach", "last hand-over"):
        table.add_column(name, no_wrap=True)
    ids = short_ids(daemons)
    for daemon in daemons:
        is_up = daemon["state"] in ("running", "draining")
        table.add_row(
            ids[daemon["daemon"]],
            escape(daemon["host"]),
            escape(daemon["version"]),
            daemon["state"] + (" (this one)" if daemon["is_this"] else ""),
            _local(daemon["started_ms"]) if is_up else "-",
            _when(daemon["seen_ms"], now_ms),
            f"{daemon['accepted_per_s']:,.1f}" if is_up else "-",
            f"{daemon['delivered_per_s']:,.1f}" if is_up else "-",
            f"{daemon['backlog']:,}",
            escape(", ".join(daemon["unreachable"])) or "-",
            _when(daemon["last_hand_over_ms"], now_ms),
        )
    return table


def _when(at_ms: int | None, now_ms: int) -> str:
    if at_ms is None:
        return "never"
    return "now" if now_ms - at_ms < NOW_MS else f"{ago(at_ms, now_ms)} ago"


def _local(at_ms: int) -> str:
    """A time in this host's time zone."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%Y-%m-%d %H:%M")
