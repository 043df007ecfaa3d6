"""`forebay queues`, `forebay pause` and `forebay resume`: queues and their settings."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    DaemonSocket,
    Json,
    Yes,
    counted,
    make_sure,
    open_control,
    print_json,
    print_table,
    print_yaml,
)

if TYPE_CHECKING:
    from rich.table import Table

PAUSE_EXAMPLE: Final = (
    "Examples: [bold]forebay pause crm[/bold] during maintenance of the CRM; "
    "[bold]forebay pause crm --flow nightly[/bold] pauses only that flow."
)
RESUME_EXAMPLE: Final = (
    "Examples: [bold]forebay resume crm[/bold]; [bold]forebay resume crm --flow nightly[/bold]."
)

app = typer.Typer(
    no_args_is_help=True,
    help="List, create, change, empty and delete queues.",
    epilog="A queue comes from the configuration file ([bold]queues:[/bold]), from "
    "[bold]create[/bold] here, or from the first push to it. Its handler, e.g. [bold]http[/bold], "
    "delivers its items; with type [bold]pull[/bold] they wait for consumers: see "
    "[bold]forebay pull[/bold]. All settings, with defaults and ranges, are in "
    "etc/forebay.yaml.",
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Flow = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this flow, not the whole queue.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, as in the configuration: [bold]max_retries=3[/bold] or "
        "[bold]handler.type=pull[/bold]; may be repeated.",
    ),
]


@app.command(epilog="Example: [bold]forebay queues ls[/bold]")
def ls(as_json: Json = False, socket: DaemonSocket = None) -> None:
    """List the queues: where each was defined, its handler, and whether it is paused.

    Defined by [bold]file[/bold]: the configuration; [bold]control[/bold]: [bold]forebay queues
    create[/bold]; [bold]push[/bold]: a push has made it, with the defaults.
    """
    with open_control(socket) as control:
        queues = control.queues()
    if as_json:
        for queue in queues:
            print_json(queue)
    else:
        print_table(_table(queues))


@app.command(epilog="Example: [bold]forebay queues show crm[/bold]")
def show(queue: Queue, as_json: Json = False, socket: DaemonSocket = None) -> None:
    """Print all settings of a queue that are in force, as YAML."""
    with open_control(socket) as control:
        found = find(control.queues(), queue)
    if as_json:
        print_json(found)
    else:
        print_yaml(found)


@app.command(
    epilog="Examples: [bold]forebay queues create mail --set handler.type=pull "
    "--set max_retries=3[/bold]; [bold]forebay queues create crm --set handler.type=http "
    "--set handler.url=https://crm.example/hook --set rate_limit=50[/bold]"
)
def create(
    queue: Queue, sets: Sets = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Create a queue. Other settings have the daemon's defaults.

    It survives restarts. Its handler can be [bold]pull[/bold], [bold]http[/bold] or
    [bold]null[/bold]. The others run code as the daemon's user and must be in the configuration
    file.
    """
    settings = read_sets(sets or ())
    with open_control(socket) as control:
        made = control.create_queue(queue, settings)
    _say(made, f"{queue} created", as_json)


@app.command(
    epilog="Example: [bold]forebay queues change mail --set 'rate_limit=5 requests/s'[/bold]"
)
def change(
    queue: Queue, sets: Sets = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Change settings of a queue; other settings stay as they are.

    Queues of the configuration file are changed there.
    """
    settings = read_sets(sets or ())
    if not settings:
        raise typer.BadParameter("nothing to change: pass --set, e.g. --set max_retries=3")
    with open_control(socket) as control:
        changed = control.change_queue(queue, settings)
    _say(changed, f"{queue} changed", as_json)


@app.command(epilog="Example: [bold]forebay queues delete mail[/bold]")
def delete(queue: Queue, yes: Yes = False, socket: DaemonSocket = None) -> None:
    """Delete an empty queue that was created here.

    Empty a queue that still holds items first: let it drain, or use [bold]forebay queues
    purge[/bold]. Queues of the configuration file are deleted there.
    """
    make_sure(f"Delete the queue {queue}?", yes)
    with open_control(socket) as control:
        control.delete_queue(queue)
    typer.echo(f"{queue} deleted")


@app.command(epilog="Example: [bold]forebay queues purge mail --yes[/bold]")
def purge(queue: Queue, yes: Yes = False, socket: DaemonSocket = None) -> None:
    """Delete all items that wait in a queue; this cannot be undone.

    Items that workers and consumers have leased stay, and so do dead letters (see
    [bold]forebay dead[/bold]).
    """
    make_sure(f"Delete all items that wait in {queue}? This cannot be undone.", yes)
    deleted, more = 0, True
    with open_control(socket) as control:
        while more:
            found = control.purge(queue)
            deleted, more = deleted + found["deleted"], found["more"]
    typer.echo(f"{counted(deleted, 'item')} of {queue} deleted")


def pause(
    queue: Queue, flow: Flow = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Stop delivering and leasing items of a queue, or of one of its flows, until it is resumed.

    Pushes are still accepted and stored. Deliveries in flight are finished. A pause survives
    restarts of the daemon.
    """
    with open_control(socket) as control:
        _say_state(control.pause(queue, flow), as_json)


def resume(
    queue: Queue, flow: Flow = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Resume a paused queue or flow.

    Flows that were paused by name stay paused when their queue is resumed.
    """
    with open_control(socket) as control:
        _say_state(control.resume(queue, flow), as_json)


def find(queues: list[dict[str, Any]], name: str) -> dict[str, Any]:
    from forebay.errors import Refused

    for queue in queues:
        if queue["queue"] == name:
            return queue
    raise Refused("NOT_FOUND", f"there is no queue {name}")


def read_sets(sets: Iterable[str]) -> dict[str, Any]:
    """Parses `handler.type=pull` and the like into a tree of settings."""
    from daemon.config.yaml_source import read_scalar

    tree: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        path = key.split(".")
        if not equals or not all(path):
            raise typer.BadParameter(f"--set: {text!r} is not KEY=VALUE, as max_retries=3")
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise typer.BadParameter(f"--set: {key} and {part} cannot both be set")
        try:
            node[path[-1]] = read_scalar(value)
        except ValueError as error:
            raise typer.BadParameter(f"--set {key}: {error}") from error
    return tree


def _say(queue: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json(queue)
    else:
        typer.echo(text)


def _say_state(queue: dict[str, Any], as_json: bool) -> None:
    flows = ", ".join(queue.get("paused_flows", ()))
    now = "paused" if queue.get("is_paused") else "running"
    text = f"{queue['queue']} is {now}" + (f", paused flows: {flows}" if flows else "")
    _say(queue, text, as_json)


def _table(queues: list[dict[str, Any]]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("queue", no_wrap=True)
    table.add_column("defined by", no_wrap=True)
    table.add_column("handler", no_wrap=True)
    table.add_column("held", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("description")
    for queue in queues:
        settings = queue.get("settings", {})
        table.add_row(
            queue["queue"],
            queue.get("origin", ""),
            settings.get("handler", {}).get("type", ""),
            f"{queue.get('held', 0):,}",
            escape(state(queue)),
            escape(settings.get("description", "")),
        )
    return table


def state(queue: dict[str, Any]) -> str:
    """Running, paused or not active."""
    if queue.get("is_paused"):
        return "paused"
    if not queue.get("settings", {}).get("is_active", True):
        return "not active"
    flows = queue.get("paused_flows")
    return f"paused: {', '.join(flows)}" if flows else "running"
