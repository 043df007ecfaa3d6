"""`forebay writes`: lists writes that are staged and not published; aborts orphans."""

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
    help="Writes: items that Spark jobs stage, and publish as a whole or not at all.",
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
        bool, typer.Option("--all", help="Also list published and aborted writes.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "-n", "--limit", metavar="N", min=1, max=LIMIT_MAX, help="List at most N writes."
        ),
    ] = LIMIT_MAX,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """List the open writes: staged and durable, but not visible to workers and consumers.

    A job's write is open until its driver publishes it. A write without activity for hours is an
    orphan: its driver is gone. It takes room in the spool until [bold]forebay writes abort[/bold]
    drops it, or until spool.stage_ttl (24 h) has passed.

    Columns: items staged so far, stages (one per attempt of a task), sealed (complete) stages, and
    the time since the last activity.
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
        typer.echo(f"… and {more:,} with earlier activity: see --limit", err=True)


@app.command(epilog=ABORT_EXAMPLE)
def abort(
    write: Annotated[
        str, typer.Argument(metavar="ID", help="The write's id, with dashes or without.")
    ],
    yes: Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    socket: DaemonSocket = None,
) -> None:
    """Drop all staged items of a write for good.

    If its job still runs, the job fails at its next step, and nothing of it becomes visible. A
    published write is not changed.

    Exit code 0: the write is aborted. 1: it was already published. 5: there is no such write.
    """
    from forebay.client import connect
    from forebay.errors import Refused
    from forebay.writes import write_id

    try:
        chosen = write_id(write)
    except ValueError as error:
        raise typer.BadParameter(f"{write!r} is not a valid write id: use 32 hex digits") from error
    with connect(socket, TIMEOUT_S) as client:
        known = client.control("write.list", all=True, write=chosen.hex())["writes"]
        if not known:
            raise Refused("NOT_FOUND", f"no write {chosen.hex()}, or it has expired")
        if known[0]["phase"] == "open":
            make_sure(f"Drop {describe(known[0], now_ms())}?", yes)
        done = client.abort_write(chosen)
    if as_json:
        print_json({"write": chosen.hex(), "outcome": done.outcome, "items": done.items})
    elif done.outcome == "aborted":
        typer.echo(f"{chosen.hex()} aborted: {counted(done.items, 'item')} dropped")
    else:
        items = counted(done.items, "item")
        typer.echo(f"{chosen.hex()} was published, {items}: nothing changed", err=True)
    if done.outcome != "aborted":
        raise typer.Exit(Exit.FAILURE)


def describe(write: dict[str, Any], at_ms: int) -> str:
    """An open write, in words."""
    queues = ", ".join(write["queues"])
    items = counted(write["items"], "staged item") + (f" for {queues}" if queues else "")
    return f"{items}, last activity {ago(write['heard_ms'], at_ms)} ago"


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
