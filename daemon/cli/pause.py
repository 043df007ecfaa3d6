"""`forebay pause` and `forebay resume`: hold a queue, or one flow of it, and let it go on."""

from typing import Annotated, Any, Final

import typer

from daemon.cli.client import DaemonSocket, Json, open_control, print_json

PAUSE_EXAMPLE: Final = (
    "Examples: [bold]forebay pause crm[/bold] while the CRM is maintained; "
    "[bold]forebay pause crm --flow nightly[/bold] holds that flow alone."
)
RESUME_EXAMPLE: Final = (
    "Examples: [bold]forebay resume crm[/bold]; [bold]forebay resume crm --flow nightly[/bold]."
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Flow = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this flow, not the whole queue.")
]


def pause(
    queue: Queue, flow: Flow = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Deliver and lease nothing of a queue, or of one of its flows, until it is resumed.

    Pushes are still taken, and stored. What is being delivered now is finished. A pause outlives
    restarts of the daemon.
    """
    with open_control(socket) as control:
        _show(control.pause(queue, flow), as_json)


def resume(
    queue: Queue, flow: Flow = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Go on with a queue, or a flow, that was paused.

    Resuming a queue leaves the flows paused that were paused by name.
    """
    with open_control(socket) as control:
        _show(control.resume(queue, flow), as_json)


def _show(queue: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(queue)
    else:
        typer.echo(describe(queue))


def describe(queue: dict[str, Any]) -> str:
    """What of a queue is held, in a sentence."""
    flows = ", ".join(queue.get("paused_flows", ()))
    name = queue["queue"]
    if queue.get("is_paused"):
        return f"{name} is paused" + (f", and its flows {flows} are as well" if flows else "")
    return f"{name} is not paused, but its flows {flows} are" if flows else f"{name} is not paused"
