"""`forebay triggers`: triggers, which make jobs at set times or from the items of a queue."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.client import (
    DaemonSocket,
    Json,
    Yes,
    make_sure,
    open_client,
    print_json,
    print_table,
    read_headers,
    read_priority,
)

if TYPE_CHECKING:
    from rich.table import Table


app = typer.Typer(
    no_args_is_help=True,
    help="Triggers: make jobs at set times, or from the items that wait in a queue.",
    epilog="A [bold]QUEUE[/bold] trigger polls a queue, claims a batch of its items, and puts one "
    "job that lists them into its target. The items are done when the job is done, and given back "
    "when it is dead. A [bold]TIME[/bold] trigger is a schedule: [bold]forebay cron[/bold] shows "
    "it too. Triggers of the configuration file ([bold]triggers:[/bold]) are listed here, but "
    "changed in the file.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `forebay triggers ls`.")]


@app.command(epilog="Example: [bold]forebay triggers ls[/bold]")
def ls(as_json: Json = False, socket: DaemonSocket = None) -> None:
    """List the triggers: the queue that each polls, the target of its jobs, and its state."""
    with open_client(socket) as client:
        triggers = client.control("trigger.list")["triggers"]
    if as_json:
        for trigger in triggers:
            print_json(trigger)
    elif triggers:
        print_table(_table(triggers))
    else:
        typer.echo("no triggers: forebay triggers add --help shows how to make one", err=True)


@app.command(epilog="Example: [bold]forebay triggers show embed[/bold]")
def show(name: Name, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Show a trigger, its settings, and its unfinished jobs."""
    with open_client(socket) as client:
        found = client.control("trigger.show", name=name)
    if as_json:
        print_json(found)
        return
    typer.echo(f"{name}: {found['type']}, {found['when']}, {_way(found)}{_state_after(found)}")
    for key, value in found["settings"].items():
        typer.echo(f"  {key}: {value}")
    for job in found["live_jobs"]:
        typer.echo(f"  job {job['id']} in {job['target']}: {job['items']} items")


@app.command(
    epilog="Examples: [bold]forebay triggers add embed documents embedding-jobs --batch-size 500 "
    "--polling-interval 30s[/bold]; [bold]forebay triggers add nightly jobs --every 1d[/bold] "
    "makes a TIME trigger, as [bold]forebay cron add[/bold] does",
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new trigger.")],
    queue: Annotated[
        str,
        typer.Argument(metavar="QUEUE", help="The queue to poll; for a TIME trigger, its target."),
    ],
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="The queue that gets the jobs.")
    ] = None,
    polling_interval: Annotated[
        str | None, typer.Option(metavar="DURATION", help="100ms to 1d. Default: 10s.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="At most this many items per job, 1 to 10000. Default: 100.")
    ] = None,
    jobs_max: Annotated[
        int | None, typer.Option(help="At most this many unfinished jobs. Default: 100.")
    ] = None,
    job_lease: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="An unfinished job that is not leased is taken back after this long. Default: 1h.",
        ),
    ] = None,
    cron: Annotated[str | None, typer.Option(help="A TIME trigger: five fields.")] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="A TIME trigger: a period like 10s or 1h30m."),
    ] = None,
    priority: Annotated[str | None, typer.Option(help="0 to 255, or a label.")] = None,
    flow: Annotated[str, typer.Option(help="The flow of its jobs.")] = "",
    action: Annotated[str, typer.Option(help="The action of its jobs.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Add a trigger. It survives restarts of this daemon.

    While a QUEUE trigger exists, only the trigger gets items of its queue. If several daemons share
    one PostgreSQL, put a trigger that must outlive this host into the configuration of all of
    them: one at a time runs it.
    """
    given: dict[str, Any] = {
        "polling_interval": polling_interval,
        "batch_size": batch_size,
        "jobs_max": jobs_max,
        "job_lease": job_lease,
        "cron": cron,
        "every": every,
        "priority": None if priority is None else read_priority(priority),
    }
    settings = {key: value for key, value in given.items() if value is not None}
    settings |= {"flow": flow, "action": action, "headers": read_headers(header or [])}
    if cron is None and every is None:
        if target is None:
            raise typer.BadParameter("a QUEUE trigger needs a TARGET: the queue that gets its jobs")
        settings |= {"type": "QUEUE", "queue": queue, "target": target}
    else:
        if target is not None:
            raise typer.BadParameter("a TIME trigger has only one queue, which gets its items")
        settings |= {"type": "TIME", "target": queue}
    with open_client(socket) as client:
        made = client.control("trigger.add", name=name, settings=settings)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{name}: {made['when']}, {_way(made)}{_state_after(made)}")


@app.command(epilog="Example: [bold]forebay triggers rm embed[/bold]")
def rm(name: Name, yes: Yes = False, socket: DaemonSocket = None) -> None:
    """Remove a trigger. Its unfinished jobs keep the items they have claimed.

    To remove a trigger of the configuration file, edit the file and run [bold]systemctl reload
    forebay[/bold].
    """
    make_sure(f"Remove the trigger {name}?", yes)
    with open_client(socket) as client:
        client.control("trigger.remove", name=name)
    typer.echo(f"{name} removed")


@app.command("run-now", epilog="Example: [bold]forebay triggers run-now embed[/bold]")
def run_now(name: Name, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Poll now, and make a job of the items that are due. A TIME trigger pushes its item."""
    with open_client(socket) as client:
        made = client.control("trigger.run", name=name)
    if as_json:
        print_json(made)
    elif made["id"] is None:
        typer.echo("no job: nothing is due, the queue is paused, or jobs_max is reached")
    else:
        of = f", of {made['items']} items" if made["items"] else ""
        typer.echo(f"{made['id']} pushed to {made['target']}{of}")


@app.command(epilog="Example: [bold]forebay triggers pause embed[/bold]")
def pause(name: Name, socket: DaemonSocket = None) -> None:
    """Stop claiming items, on every daemon, until it is resumed. Existing jobs continue."""
    with open_client(socket) as client:
        client.control("trigger.pause", name=name)
    typer.echo(f"{name} paused")


@app.command(epilog="Example: [bold]forebay triggers resume embed[/bold]")
def resume(name: Name, socket: DaemonSocket = None) -> None:
    """Resume a paused trigger."""
    with open_client(socket) as client:
        client.control("trigger.resume", name=name)
    typer.echo(f"{name} resumed")


def _way(trigger: dict[str, Any]) -> str:
    source = f"{trigger['queue']} " if trigger["queue"] else ""
    return f"{source}into {trigger['target']}"


def _state(trigger: dict[str, Any]) -> str:
    if trigger["problem"]:
        return str(trigger["problem"])
    if not trigger["enabled"]:
        return "disabled"
    return "paused" if trigger["paused"] else ""


def _state_after(trigger: dict[str, Any]) -> str:
    state = _state(trigger)
    return f" ({state})" if state else ""


def _table(triggers: list[dict[str, Any]]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "type", "when", "queue", "target"):
        table.add_column(column, no_wrap=True)
    table.add_column("jobs", no_wrap=True, justify="right")
    table.add_column("from", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis")
    for each in triggers:
        table.add_row(
            escape(each["name"]),
            each["type"],
            escape(each["when"]),
            escape(each["queue"] or "-"),
            escape(each["target"]),
            str(each["jobs"]),
            each["origin"],
            escape(_state(each)),
        )
    return table
