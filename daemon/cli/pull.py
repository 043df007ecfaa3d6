"""`forebay pull`: prints items of a queue on standard output."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import TIMEOUT_S, DaemonSocket, parse_time
from daemon.process.terminal import json_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.client import Client
    from forebay.item import Item
    from forebay.leases import Lease

WAIT: Final = "10s"
FOLLOW_S: Final = 3600.0
"""How long one request waits; then the next one waits."""
EXAMPLE: Final = (
    "Examples: [bold]forebay pull crm -n 5 --no-ack[/bold] prints five items and leaves them "
    "in the queue; [bold]forebay pull crm --follow | ./work.sh[/bold] takes items as they come."
)


class Format(StrEnum):
    ndjson = "ndjson"
    raw = "raw"


def pull(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue to take from.")],
    count: Annotated[
        int,
        typer.Option(
            "-n", "--count", metavar="N", min=1, help="Take at most N items; see --follow."
        ),
    ] = 10,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long to wait for the first item, and for the queue if it does not exist yet. "
            "\\[default: 10s, and the queue must exist]",
            show_default=False,
        ),
    ] = None,
    lease: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Lease time of the items: printing must not take longer. 0: the queue's setting.",
        ),
    ] = "60s",
    ack: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack",
            help="Acknowledge printed items. Otherwise they are given back when the command ends.",
        ),
    ] = True,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Repeat until interrupted, --count items at a time."),
    ] = False,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="[bold]ndjson[/bold]: one JSON object per line, with all fields; "
            "[bold]raw[/bold]: the payload and a line feed.",
        ),
    ] = Format.ndjson,
    socket: DaemonSocket = None,
) -> None:
    """Take items from a queue and print them.

    An item is acknowledged after it was written to standard output, and then leaves the queue. If
    writing fails, or the command is interrupted before, the item is given back and comes again.
    """
    must_exist, wait = wait is None and not follow, wait or WAIT
    wait_s, lease_s = parse_time(wait, "--wait"), parse_time(lease, "--lease")

    from forebay.client import connect

    printed = 0
    with connect(socket, TIMEOUT_S) as client:
        if must_exist:
            client.control("queues.show", queue=queue)
        while follow or printed < count:
            leased = _lease(client, queue, count, printed, lease_s, wait_s, follow)
            if not leased and not follow:
                break
            _print(leased, form, ack)
            printed += len(leased)
    if not printed and sys.stderr.isatty():
        typer.echo(f"nothing was due in {queue} within {wait}", err=True)


def _lease(
    client: "Client",
    queue: str,
    count: int,
    printed: int,
    lease_s: float,
    wait_s: float,
    follow: bool,
) -> "Lease":
    """Waits for the first item only; takes as many others as are due."""
    from forebay.limits import LEASE_ITEMS_MAX

    items, wait_s = (count, FOLLOW_S) if follow else (count - printed, 0.0 if printed else wait_s)
    items = min(items, LEASE_ITEMS_MAX)
    return client.lease(queue, items, lease_s=lease_s, wait_s=wait_s, consumer="forebay pull")


def _print(leased: "Lease", form: Format, ack: bool) -> None:
    if not ack:
        _write(leased, form)
        return
    with leased:
        _write(leased, form)


def _write(items: "Iterable[Item]", form: Format) -> None:
    """Returns when everything is written to standard output."""
    lines = (
        item.payload + b"\n" if form is Format.raw else item_line(item_object(item))
        for item in items
    )
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()


def item_object(item: "Item") -> dict[str, Any]:
    """An item as in NDJSON files and request bodies."""
    shown: dict[str, Any] = {
        "id": item.id,
        "queue": item.queue,
        "key": item.key,
        "attempt": item.attempt,
        "priority": item.priority,
        "flow": item.flow,
        "action": item.action,
        "headers": dict(item.headers),
    }
    try:
        shown["payload"] = item.payload.decode()
    except UnicodeDecodeError:
        import base64

        shown["payload_b64"] = base64.b64encode(item.payload).decode()
    return shown


def item_line(shown: dict[str, Any]) -> bytes:
    return json_text(shown, separators=(",", ":")).encode() + b"\n"
