"""`forebay writes`: what is staged and not published, and dropping what nobody will publish."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    TIMEOUT_S,
    DaemonSocket,
    Json,
    Yes,
    ago,
    counted,
    make_sure,
    now_ms,
    print_json,
    print_table,
)
from daemon.cli.exits import Exit

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    no_args_is_help=True,
    help="Writes: what Spark jobs have staged, and publish as a whole or not at all.",
)

LS_EXAMPLE: Final = (
    "Examples: [bold]forebay writes ls[/bold]; [bold]forebay writes ls --all -n 20[/bold]; "
    "[bold]forebay writes ls --json | jq -r .write[/bold]."
)
ABORT_EXAMPLE: Final = (
    "Example: [bold]forebay writes abort 0198c0de0a0070008000000000000001 --yes[/bold]"
)
LIMIT_MAX: Final = 1000


@app.command(epilog=LS_EXAMPLE)
def ls(
    also_over: Annotated[
        bool, typer.Option("--all", help="Also those that were published or aborted.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option("-n", "--limit", metavar="N", min=1, max=LIMIT_MAX, help="At most so many."),
    ] = LIMIT_MAX,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """List the writes that are open: staged, durable, and seen by nobody.

    A job's write is open until its driver publishes it. One that was heard of a moment ago is
    under way. One that was not heard of for hours is an orphan: its driver is gone. It takes room
    in the spool until [bold]forebay writes abort[/bold] drops it, or spool.stage_ttl (24 h) is
    over.

    Columns: items staged so far, the stages (one for each attempt of a task) and how many of them
    are sealed, that is, complete; when it was last heard of.
    """
    from forebay.client import connect

    with connect(socket, TIMEOUT_S) as client:
        result = client.control("write.list", all=also_over, limit=limit)
    writes, more = result["writes"], result["more"]
    if as_json:
        for write in writes:
            print_json(write)
    elif writes:
        print_table(_table(writes, now_ms()))
    else:
        typer.echo("no writes" if also_over else "no open writes", err=True)
    if more:
        typer.echo(f"… and {more:,} that were heard of before: see --limit", err=True)


@app.command(epilog=ABORT_EXAMPLE)
def abort(
    write: Annotated[
        str, typer.Argument(metavar="ID", help="The write's id, with dashes or without.")
    ],
    yes: Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one object.")] = False,
    socket: DaemonSocket = None,
) -> None:
    """Drop all that is staged of a write, for good.

    Its job, if it still runs, fails when it goes on: nothing of it becomes visible. A write that
    was published is not changed.

    Exit code 0: it is aborted. 1: it was published before. 5: there is no such write.
    """
    from forebay.client import connect
    from forebay.errors import Refused
    from forebay.writes import write_id

    try:
        chosen = write_id(write)
    except ValueError as error:
        raise typer.BadParameter(f"{write!r} is no write's id: 32 hexadecimal digits") from error
    with connect(socket, TIMEOUT_S) as client:
        known = client.control("write.list", all=True, write=chosen.hex())["writes"]
        if not known:
            raise Refused("NOT_FOUND", f"there is no write {chosen.hex()}, or none any more")
        if known[0]["phase"] == "open":
            make_sure(f"Drop {describe(known[0], now_ms())}?", yes)
        done = client.abort_write(chosen)
    if as_json:
        print_json({"write": chosen.hex(), "outcome": done.outcome, "items": done.items})
    elif done.outcome == "aborted":
        typer.echo(f"{chosen.hex()} is aborted: {counted(done.items, 'item')} dropped")
    else:
        items = counted(done.items, "item")
        typer.echo(f"{chosen.hex()} was published, {items}: nothing is changed", err=True)
    if done.outcome != "aborted":
        raise typer.Exit(Exit.FAILURE)


def describe(write: dict[str, Any], at_ms: int) -> str:
    """An open write, in words."""
    queues = ", ".join(write["queues"])
    items = counted(write["items"], "staged item") + (f" for {queues}" if queues else "")
    return f"{items}, last heard of {ago(write['heard_ms'], at_ms)} ago"


def _table(writes: list[dict[str, Any]], at_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("write", no_wrap=True, overflow="fold")
    table.add_column("phase", no_wrap=True)
    for name in ("items", "stages", "sealed", "heard of"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("queues")
    table.add_column("transaction")
    for write in writes:
        app_name = write["app"]
        table.add_row(
            write["write"],
            write["phase"],
            *(f"{write[name]:,}" for name in ("items", "stages", "sealed")),
            f"{ago(write['heard_ms'], at_ms)} ago",
            ", ".join(write["queues"]),
            "" if app_name is None else f"{escape(app_name)}, version {write['version']}",
        )
    return table
