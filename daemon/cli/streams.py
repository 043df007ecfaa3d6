"""`forebay streams`: lists the consumers that read queues as streams; drops one."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    TIMEOUT_S,
    DaemonSocket,
    Json,
    Yes,
    counted,
    make_sure,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    no_args_is_help=True, help="Consumers that read a queue as a stream, like Spark's readStream."
)

LS_EXAMPLE: Final = (
    "Examples: [bold]forebay streams ls[/bold]; [bold]forebay streams ls crm --json[/bold]."
)
DROP_EXAMPLE: Final = "Example: [bold]forebay streams drop crm lake --yes[/bold]"


@app.command(epilog=LS_EXAMPLE)
def ls(
    queue: Annotated[
        str | None,
        typer.Argument(metavar="QUEUE", help="Only this queue.", show_default=False),
    ] = None,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """List the consumers that read queues as streams, and the progress of each.

    A consumer claims items, reads them, and acknowledges the claim by making the next one. Columns:
    the last acknowledged claim, the open claim and its items, and the backlog: items of the queue
    that no consumer has claimed.

    While a queue has a consumer, its items wait for it, and its handler gets none. A consumer whose
    query is gone keeps its claim and its queue until [bold]forebay streams drop[/bold].
    """
    from forebay.client import connect

    which = {} if queue is None else {"queue": queue}
    with connect(socket, TIMEOUT_S) as client:
        streams = client.control("stream.list", **which)["streams"]
    if as_json:
        for stream in streams:
            print_json(stream)
    elif streams:
        print_table(_table(streams))
    else:
        typer.echo("no streams" if queue is None else f"no streams of {queue}", err=True)


@app.command(epilog=DROP_EXAMPLE)
def drop(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")],
    consumer: Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer's name.")],
    yes: Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    socket: DaemonSocket = None,
) -> None:
    """Forget a consumer. The items of its open claim wait again, in their old place.

    Use it when the consumer's query is gone for good, or restarts with an empty checkpoint. A query
    that continues with its old checkpoint is refused, and others read again what it had read and
    not acknowledged. When the queue has no other consumer, its handler gets its items.

    Exit code 0: the consumer is dropped. 5: there is no such consumer.
    """
    from forebay.client import connect
    from forebay.errors import Refused

    with connect(socket, TIMEOUT_S) as client:
        streams = client.control("stream.list", queue=queue)["streams"]
        known = [stream for stream in streams if stream["consumer"] == consumer]
        if not known:
            raise Refused("NOT_FOUND", f"{queue} has no consumer {consumer}")
        make_sure(f"Drop {describe(known[0])}?", yes)
        released = client.stream_drop(queue, consumer)
    if as_json:
        print_json({"queue": queue, "consumer": consumer, "released": released})
    else:
        typer.echo(f"{consumer} of {queue} dropped: {counted(released, 'item')} given back")


def describe(stream: dict[str, Any]) -> str:
    """A consumer, in words."""
    name = f"the consumer {stream['consumer']} of {stream['queue']}"
    if stream["claim"] is None:
        return f"{name}, which has no open claim"
    return f"{name}, and give {counted(stream['items'], 'claimed item')} back"


def _table(streams: list[dict[str, Any]]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("queue", no_wrap=True)
    table.add_column("consumer", no_wrap=True, overflow="fold")
    for name in ("acknowledged", "open claim", "items", "backlog"):
        table.add_column(name, justify="right", no_wrap=True)
    for stream in streams:
        claim = stream["claim"]
        table.add_row(
            stream["queue"],
            escape(stream["consumer"]),
            f"{stream['acknowledged']:,}",
            "–" if claim is None else f"{claim:,}",
            f"{stream['items']:,}",
            f"{stream['backlog']:,}",
        )
    return table
