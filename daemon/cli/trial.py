"""`forebay try`: shows what a queue's handler sends for an item, and what comes back."""

import base64
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from daemon.cli.client import DaemonSocket, Json, open_control, print_json
from daemon.cli.options import ConfigFile, Sets

EXAMPLE: Final = (
    "Examples: [bold]forebay try crm --item contact.json[/bold] shows the request; "
    "[bold]forebay try crm --from-dead 0198c2f4-17 --send[/bold] sends a dead letter once more and "
    "leaves it where it is; [bold]forebay try crm --item contact.json --config forebay.yaml[/bold] "
    "needs no daemon."
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue whose handler is tried.")]
ItemFile = Annotated[
    str | None,
    typer.Option("--item", metavar="FILE|-", help="The payload of an item; - is standard input."),
]
FromDead = Annotated[
    str | None, typer.Option("--from-dead", metavar="ID", help="A dead letter, by its id.")
]
Send = Annotated[
    bool, typer.Option("--send", help="Send the request, and show the answer and the outcome.")
]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="The item's key.")]
Flow = Annotated[str | None, typer.Option(metavar="NAME", help="The item's flow.")]
Action = Annotated[str | None, typer.Option(metavar="NAME", help="The item's action.")]


def try_out(
    queue: Queue,
    item: ItemFile = None,
    from_dead: FromDead = None,
    send: Send = False,
    key: Key = None,
    flow: Flow = None,
    action: Action = None,
    config: ConfigFile = None,
    sets: Sets = None,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Show the request that a queue's http handler makes of an item, and send it with --send.

    Nothing is queued, stored or settled. Secrets are shown as ***. The daemon's configuration is
    used, or with --config that of a file, without a daemon.

    Exit code 5 if the item is refused or would be tried again.
    """
    if (item is None) == (from_dead is None):
        raise typer.BadParameter("give --item FILE or --from-dead ID")
    fields: dict[str, Any] = {"key": key, "flow": flow, "action": action}
    if item is not None:
        fields["payload_b64"] = base64.b64encode(_read(item)).decode()
    else:
        fields["from_dead"] = from_dead
    given = {name: value for name, value in fields.items() if value is not None}
    if config is not None or sets:
        if from_dead is not None:
            raise typer.BadParameter("--from-dead needs a daemon: leave --config and --set away")
        trial = _without_daemon(queue, given, config, sets, send=send)
    else:
        with open_control(socket) as control:
            trial = control.try_out(queue, send=send, **given)
    if as_json:
        print_json(trial)
    else:
        _print(trial)
    if trial["outcome"] in ("refused", "retry"):
        raise typer.Exit(5)


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        raise typer.BadParameter(f"--item: {path}: {problem.strerror}") from None


def _without_daemon(
    queue: str, item: dict[str, Any], config: Any, sets: list[str] | None, *, send: bool
) -> dict[str, Any]:
    import trio

    from actors.control.trials import trial_item, trial_object, try_out
    from daemon.cli.options import load_settings
    from daemon.errors import ConfigError
    from daemon.handlers import open_handler
    from daemon.process import logs

    settings = load_settings(config, None, None, None, sets).settings
    logs.set_up(settings.log)
    found = settings.queues.get(queue)
    if found is None:
        names = ", ".join(settings.queues) or "none"
        raise ConfigError(f"the configuration has no queue {queue}; its queues: {names}")
    payload = base64.b64decode(item.pop("payload_b64"))
    made = trial_item(queue, payload, **item)
    return trial_object(trio.run(try_out, queue, found, made, open_handler, send))


def _print(trial: dict[str, Any]) -> None:
    for request in trial["requests"]:
        typer.echo(f"{request['method']} {request['url']}")
        for name, value in request["headers"].items():
            typer.echo(f"{name}: {value}")
        typer.echo()
        typer.echo(request.get("body") or f"({len(request.get('body_b64', ''))} characters base64)")
        if request["status"] is not None:
            typer.echo(f"\n{request['status']} {request['answer'] or ''}")
        typer.echo()
    error = f": {trial['error']}" if trial["error"] else ""
    words = {"ready": "ready to be sent (--send sends it)", "retry": "would be tried again"}
    typer.echo(f"{words.get(trial['outcome'], trial['outcome'])}{error}")
