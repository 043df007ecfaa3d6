"""`forebay cron`: schedules, which push items at set times."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from daemon.cli.client import (
    DaemonSocket,
    Json,
    Yes,
    ago,
    make_sure,
    now_ms,
    open_client,
    print_json,
    print_table,
    read_headers,
    read_priority,
)
from forebay.strict_json import loads

if TYPE_CHECKING:
    from rich.table import Table


app = typer.Typer(
    no_args_is_help=True,
    help="Schedules: items that the daemon pushes at set times, such as nightly or every 10 s.",
    epilog="A schedule pushes an item into a queue at each of its [bold]ticks[/bold]; the queue's "
    "handler or consumers do the work. The next four ticks are always in the cold store, so they "
    "come due even if the daemon that made them is gone. Schedules of the configuration file "
    "([bold]schedules:[/bold]) are listed here too, but changed in the file.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `forebay cron ls`.")]
Missed = Literal["run_once", "run_all", "skip"]


@app.command(epilog="Example: [bold]forebay cron ls[/bold]")
def ls(as_json: Json = False, socket: DaemonSocket = None) -> None:
    """List the schedules: timing, queue, next tick, and the state of the last tick's item."""
    with open_client(socket) as client:
        schedules = client.control("cron.list")["schedules"]
    if as_json:
        for schedule in schedules:
            print_json(schedule)
    elif schedules:
        print_table(_table(schedules, now_ms()))
    else:
        typer.echo("no schedules: forebay cron add --help shows how to make one", err=True)


@app.command(epilog="Example: [bold]forebay cron show nightly[/bold]")
def show(name: Name, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Show a schedule: its last and next tick, what it has missed, and its settings."""
    with open_client(socket) as client:
        found = client.control("cron.show", name=name)
    if as_json:
        print_json(found)
        return
    state = _state(found)
    typer.echo(f"{name}: {found['when']} into {found['queue']}{f' ({state})' if state else ''}")
    typer.echo(f"  next: {_local(found['next_ms'])}")
    last = f" ({found['last_state'] or 'not known'})" if found["last_ms"] is not None else ""
    typer.echo(f"  last: {_local(found['last_ms'])}{last}")
    if found["missed_total"]:
        typer.echo(f"  missed: {found['missed_total']}, the latest {_local(found['missed_ms'])}")
    for key, value in found["settings"].items():
        typer.echo(f"  {key}: {value}")


@app.command(
    epilog="Examples: [bold]forebay cron add beat beats --every 10s[/bold]; [bold]forebay cron "
    "add nightly jobs --cron '30 2 * * 1-5' --zone Europe/Berlin --payload '{\"job\": 1}' "
    "--json-payload[/bold]; [bold]forebay cron add report mail --daily 07:00 --zone "
    "Europe/Berlin --missed skip[/bold]",
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new schedule.")],
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue to push to.")],
    cron: Annotated[
        str | None,
        typer.Option(help="Minute, hour, day of the month, month, day of the week, in quotes."),
    ] = None,
    daily: Annotated[
        str | None, typer.Option(metavar="HH:MM", help="Every day at this time in the zone.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="A period like 10s or 1h30m; at least 1s."),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Time zone of --cron and --daily, e.g. Europe/Berlin. Default: UTC."),
    ] = None,
    payload: Annotated[
        str, typer.Option(help="Payload of each item; @FILE reads it from a file.")
    ] = "",
    json_payload: Annotated[
        bool, typer.Option("--json-payload", help="The payload is JSON: refuse it if it is not.")
    ] = False,
    priority: Annotated[str | None, typer.Option(help="0 to 255, or a label.")] = None,
    flow: Annotated[str, typer.Option(help="The flow of its items.")] = "",
    action: Annotated[str, typer.Option(help="The action of its items.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    missed: Annotated[
        Missed,
        typer.Option(
            help="Which ticks to run that came due while no daemon was running: last, all or none."
        ),
    ] = "run_once",
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Add a schedule. It survives restarts of this daemon.

    Give one of --cron, --daily and --every. A daily time that is skipped when clocks go forward
    runs right after the gap; one that occurs twice runs once. If several daemons share one
    PostgreSQL, put a schedule that must outlive this host into the configuration of all of them:
    each tick still runs once.
    """
    settings: dict[str, Any] = {
        "queue": queue,
        "payload": _payload(payload, is_json=json_payload),
        "flow": flow,
        "action": action,
        "headers": read_headers(header or []),
        "missed": missed,
    }
    if priority is not None:
        settings["priority"] = read_priority(priority)
    if cron is not None:
        settings["cron"] = cron
    if daily is not None:
        settings["daily"] = {"at": daily} | ({"zone": zone} if zone else {})
    elif zone is not None:
        settings["zone"] = zone
    if every is not None:
        settings["every"] = every
    with open_client(socket) as client:
        made = client.control("cron.add", name=name, settings=settings)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{name}: {made['when']} into {queue}, next {_local(made['next_ms'])}")


@app.command(epilog="Example: [bold]forebay cron rm beat[/bold]")
def rm(name: Name, yes: Yes = False, socket: DaemonSocket = None) -> None:
    """Remove a schedule and its future ticks.

    Items that are already due are delivered. To remove a schedule of the configuration file,
    edit the file and run [bold]systemctl reload forebay[/bold].
    """
    make_sure(f"Remove the schedule {name}?", yes)
    with open_client(socket) as client:
        client.control("cron.remove", name=name)
    typer.echo(f"{name} removed")


@app.command("next", epilog="Example: [bold]forebay cron next nightly -n 10[/bold]")
def next_(
    name: Name,
    count: Annotated[int, typer.Option("-n", min=1, max=100, help="How many ticks.")] = 4,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Show the next ticks of a schedule, in this host's time zone."""
    with open_client(socket) as client:
        found = client.control("cron.next", name=name, count=count)
    if as_json:
        print_json(found)
    else:
        for tick in found["ticks_ms"]:
            typer.echo(_local(tick))


@app.command("run-now", epilog="Example: [bold]forebay cron run-now nightly[/bold]")
def run_now(name: Name, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Push the schedule's item now. Its ticks do not change."""
    with open_client(socket) as client:
        pushed = client.control("cron.run", name=name)
    if as_json:
        print_json(pushed)
    else:
        typer.echo(f"{pushed['id']} pushed to {pushed['queue']}")


def _payload(given: str, *, is_json: bool) -> Any:
    text = Path(given[1:]).read_text() if given.startswith("@") else given
    if not is_json:
        return text
    try:
        return loads(text)
    except ValueError as problem:
        raise typer.BadParameter(f"--payload: {problem}") from problem


def _local(tick_ms: int | None) -> str:
    """A time in this host's time zone."""
    if tick_ms is None:
        return "never"
    return datetime.fromtimestamp(tick_ms / 1000).astimezone().isoformat(" ", "seconds")


def _in(tick_ms: int | None, at_ms: int) -> str:
    if tick_ms is None:
        return "-"
    seconds = max(0, tick_ms - at_ms) // 1000
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"in {seconds // length}{unit}"
    return f"in {seconds}s"


def _last(schedule: dict[str, Any], at_ms: int) -> str:
    """The last tick, and the state of its item."""
    if schedule["last_ms"] is None:
        return "-"
    return f"{ago(schedule['last_ms'], at_ms)} ago, {schedule['last_state'] or 'not known'}"


def _state(schedule: dict[str, Any]) -> str:
    return str(schedule["problem"]) or ("" if schedule["enabled"] else "disabled")


def _table(schedules: list[dict[str, Any]], at_ms: int) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "when", "queue", "next", "last"):
        table.add_column(column, no_wrap=True)
    table.add_column("missed", no_wrap=True, justify="right")
    table.add_column("if missed", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis")
    for each in schedules:
        table.add_row(
            escape(each["name"]),
            escape(each["when"]),
            escape(each["queue"]),
            _in(each["next_ms"], at_ms),
            _last(each, at_ms),
            str(each["missed_total"]),
            each["settings"]["missed"],
            each["origin"],
            escape(_state(each)),
        )
    return table
