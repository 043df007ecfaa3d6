"""`forebay fleet`: lists the daemons that share a warm queue; adopts items of a lost one."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    DaemonSocket,
    Json,
    Yes,
    ago,
    counted,
    make_sure,
    open_client,
    print_json,
    print_table,
    show_progress,
)

if TYPE_CHECKING:
    from rich.table import Table


app = typer.Typer(
    no_args_is_help=True,
    help="The daemons that share a warm queue (docs/fleet.md).",
    epilog="A daemon is [bold]valid[/bold] while it renews its entry in Valkey. One that has not "
    "done so for [bold]warm.valid[/bold] has [bold]lapsed[/bold]: the items that it entered into "
    "Valkey wait for its return, and no other daemon takes them.",
)

WARNING: Final = (
    "The journal of that host still has these items. If its daemon starts again, it delivers them "
    "again, with the same ids. If you can reach its disk, do not adopt these items: start a daemon "
    "on its state directory."
)


@app.command(epilog="Example: [bold]forebay fleet ls[/bold]")
def ls(as_json: Json = False, socket: DaemonSocket = None) -> None:
    """List the daemons that Valkey knows: their state, and their items in Valkey.

    Items that are only on a host's disk, or in PostgreSQL, are not counted.
    """
    with open_client(socket) as client:
        found = client.control("fleet.list")
    if as_json:
        for daemon in found["daemons"]:
            print_json(daemon | {"state": describe(daemon, found["now_ms"])})
    elif found["daemons"]:
        print_table(_table(found["daemons"], found["now_ms"]))
    else:
        typer.echo("no daemon has entered anything into Valkey yet", err=True)


@app.command(
    epilog="Example: [bold]forebay fleet adopt 0198c0de0a00 --yes[/bold]; the first digits of an "
    "id are enough."
)
def adopt(
    daemon: Annotated[
        str,
        typer.Argument(metavar="DAEMON", help="Its id, as [bold]forebay fleet ls[/bold] shows it."),
    ],
    yes: Yes = False,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Move the items that a lost daemon left in Valkey into this daemon's journal.

    Items keep their ids, attempts and due times. Items that another host has leased stay there;
    adopt again when their leases have ended. Refused while that daemon is valid.

    The journal of the lost host still has these items. If it returns after all, it delivers them
    again, with the same ids.
    """
    with open_client(socket) as client:
        entry = _find(client.control("fleet.list")["daemons"], daemon)
        waiting = 0 if entry is None else entry["items"] - entry["leased"]
        if entry is not None and not entry["is_valid"]:
            make_sure(f"{WARNING} Adopt {counted(waiting, 'item')}?", yes)
        items = leased = 0
        with show_progress("items", waiting) as progress:
            while True:
                step = client.control("fleet.adopt", daemon=daemon)
                items, leased = items + step["items"], step["leased"]
                progress(items)
                if not step["more"]:
                    break
    if as_json:
        print_json({"daemon": step["daemon"], "items": items, "leased": leased})
        return
    typer.echo(f"{step['daemon']}: {counted(items, 'item')} adopted")
    if leased:
        typer.echo(
            f"forebay: {counted(leased, 'item')} leased by others: adopt again when the leases end",
            err=True,
        )
    if items:
        typer.echo(f"forebay: {WARNING}", err=True)


def describe(daemon: dict[str, Any], now_ms: int) -> str:
    if daemon["is_valid"]:
        return "valid"
    if daemon["valid_until_ms"] is None:
        return "lapsed for more than a day"
    return f"lapsed for {ago(daemon['valid_until_ms'], now_ms)}"


def _find(daemons: list[dict[str, Any]], given: str) -> dict[str, Any] | None:
    """The daemon whose id begins with `given`; None if there is not exactly one."""
    found = [each for each in daemons if each["daemon"].startswith(given.lower())]
    return found[0] if len(found) == 1 else None


def _table(daemons: list[dict[str, Any]], now_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("daemon", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("items", justify="right", no_wrap=True)
    table.add_column("leased", justify="right", no_wrap=True)
    table.add_column("queues", no_wrap=True, overflow="ellipsis")
    for daemon in daemons:
        queues = ", ".join(
            f"{entry['queue']} {entry['items']:,}" for entry in daemon["queues"] if entry["items"]
        )
        table.add_row(
            daemon["daemon"],
            describe(daemon, now_ms) + (" (this one)" if daemon["is_this"] else ""),
            f"{daemon['items']:,}",
            f"{daemon['leased']:,}",
            escape(queues),
        )
    return table
