"""`forebay pause` and `forebay resume`: stop and resume the delivery of a queue or a flow."""

from typing import Annotated, Any, Final

import typer

from daemon.cli.client import DaemonSocket, Json, open_control, print_json

PAUSE_EXAMPLE: Final = (
    "Examples: [bold]forebay pause crm[/bold] during maintenance of the CRM; "
    "[bold]forebay pause crm --flow nightly[/bold] pauses only that flow."
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
    """Stop delivering and leasing items of a queue, or of one of its flows, until it is resumed.

    Pushes are still accepted and stored. Deliveries in flight are finished. A pause survives
    restarts of the daemon.
    """
    with open_control(socket) as control:
        _show(control.pause(queue, flow), as_json)


def resume(
    queue: Queue, flow: Flow = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Resume a paused queue or flow.

    Flows that were paused by name stay paused when their queue is resumed.
    """
    with open_control(socket) as control:
        _show(control.resume(queue, flow), as_json)


def _show(queue: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(queue)
    else:
        typer.echo(describe(queue))


def describe(queue: dict[str, Any]) -> str:
    """Whether the queue is paused, and which of its flows are, in a sentence."""
    flows = ", ".join(queue.get("paused_flows", ()))
    name = queue["queue"]
    if queue.get("is_paused"):
        return f"{name} is paused" + (f", paused flows: {flows}" if flows else "")
    return f"{name} is running" + (f", paused flows: {flows}" if flows else "")
