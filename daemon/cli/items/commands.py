"""`forebay items`: works with single items of a queue, by key, id or lock."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    TIMEOUT_S,
    DaemonSocket,
    Json,
    now_ms,
    open_client,
    parse_time,
    print_json,
    print_table,
    read_priority,
    resolve_priority,
)

if TYPE_CHECKING:
    from datetime import datetime

    from forebay.client import Client
    from forebay.delayed import Delayed
    from forebay.item import FailureReason

SEARCH_PAGE: Final = 100

app = typer.Typer(
    no_args_is_help=True,
    help="Single items: offer them under a key and due at a time, poll and acknowledge them by "
    "lock; find, show and delete them in any state.",
    epilog="A delayed queue by hand: [bold]forebay items offer crm customer-17 hello --delay "
    "10m[/bold], [bold]forebay items poll crm[/bold], which prints a lock, and [bold]forebay items "
    "ack LOCK[/bold], from any process.",
)

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
LockText = Annotated[str, typer.Argument(metavar="LOCK", help="A lock printed by poll.")]
LockTexts = Annotated[list[str], typer.Argument(metavar="LOCK...", help="Locks printed by poll.")]
Target = Annotated[str, typer.Argument(metavar="ID|QUEUE", help="An item's id, or a queue …")]
Key = Annotated[
    str | None, typer.Argument(metavar="KEY", help="… and a key in it.", show_default=False)
]


@app.command(
    epilog="Examples: [bold]forebay items offer crm customer-17 hello --delay 10m[/bold]; "
    "[bold]forebay items offer crm customer-17 - --at 2026-03-01T09:00Z < payload[/bold]."
)
def offer(
    queue: Queue,
    key: Annotated[str, typer.Argument(metavar="KEY", help="At most 200 bytes.")],
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="-: read standard input.", show_default=False)
    ] = "-",
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Due at e.g. 2026-03-01T09:00Z; without a zone: local time."
        ),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Due after this delay, e.g. 90s.")
    ] = None,
    priority: Annotated[
        str, typer.Option(metavar="N|LABEL", help="0 (most urgent) to 255, or a label.")
    ] = "5",
    only_if: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only replace this item, and only if it still waits."),
    ] = None,
    socket: DaemonSocket = None,
) -> None:
    """Offer an item under a key, and print the outcome.

    The queue's [bold]unique[/bold] setting decides: created, updated (replaces the item that had
    the key), ignored or conflict. The last two are not stored; a conflict has exit code 5.
    """
    from datetime import timedelta

    from daemon.cli.exits import Exit
    from forebay.keyed import KeyOutcome

    if at is not None and delay is not None:
        raise typer.BadParameter("give --at or --delay, not both")
    due = parse_moment(at) if at is not None else None
    later = timedelta(seconds=parse_time(delay, "--delay")) if delay is not None else None
    data = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    rank = read_priority(priority)
    with open_client(socket) as client, usage():
        rank, delayed = resolve_priority(client, rank), client.delayed(queue)
        outcome = delayed.offer(key, data, due or later, priority=rank, only_if=only_if)
    typer.echo(outcome.name.lower())
    if outcome is KeyOutcome.CONFLICT:
        raise typer.Exit(Exit.REFUSED)


@app.command(epilog="Example: [bold]forebay items poll crm -n 3 --lease 10m --wait 30s[/bold]")
def poll(
    queue: Queue,
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="N", min=1, help="Take at most N items.")
    ] = 1,
    lease: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Lease time of the items; 0: the queue's setting, or 1m."
        ),
    ] = "0",
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for the first item.")
    ] = "0s",
    socket: DaemonSocket = None,
) -> None:
    """Take the next items that are due, and print each with its lock, as one JSON object per line.

    Other consumers do not get them until they are refused by that lock, or until the lease ends:
    then they have used up an attempt, and come again.
    """
    from daemon.cli.items.view import polled_object

    lease_s, wait_s = parse_time(lease, "--lease"), parse_time(wait, "--wait")
    with open_client(socket) as client:
        delayed = client.delayed(queue)
        for taken in range(count):
            polled = delayed.try_poll(
                lease_s=lease_s, wait_s=0.0 if taken else wait_s, consumer="forebay items poll"
            )
            if polled is None:
                if not taken and not wait_s:
                    client.control("queues.show", queue=queue)
                if not taken and sys.stderr.isatty():
                    typer.echo(f"nothing is due in {queue}", err=True)
                return
            print_json(polled_object(polled))


@app.command(epilog="Example: [bold]forebay items ack 17.crm --result 'invoice 4711'[/bold]")
def ack(
    locks: LockTexts,
    result: Annotated[
        str, typer.Option(metavar="TEXT", help="The result, for the item's history.")
    ] = "",
    socket: DaemonSocket = None,
) -> None:
    """Acknowledge polled items: they are done. Exit code 5 if the lock is no longer valid."""
    for_each(locks, socket, lambda delayed, lock: delayed.ack(lock, result))


@app.command(epilog="Example: [bold]forebay items nack 17.crm --error 'no such customer'[/bold]")
def nack(
    locks: LockTexts,
    error: Annotated[
        str, typer.Option(metavar="TEXT", help="The error, for the item's history.")
    ] = "",
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Retry after this delay, e.g. 10m.")
    ] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Do not retry: a dead letter at once.")
    ] = False,
    business: Annotated[
        bool,
        typer.Option("--business", help="The item itself is at fault: dead, counted as business."),
    ] = False,
    socket: DaemonSocket = None,
) -> None:
    """Refuse polled items: they are retried after the queue's backoff, or become dead letters."""
    delay_s = None if delay is None else parse_time(delay, "--delay")

    def refuse(delayed: "Delayed", lock: Any) -> None:
        reason: FailureReason = "business" if business else "application"
        delayed.nack(lock, delay_s, error, permanent or None, reason)

    for_each(locks, socket, refuse)


@app.command(epilog="Example: [bold]forebay items extend 17.crm 10m[/bold]")
def extend(
    lock: LockText,
    lease: Annotated[str, typer.Argument(metavar="TIME", help="New lease time from now.")],
    socket: DaemonSocket = None,
) -> None:
    """Extend the lease of polled items."""
    seconds = parse_time(lease, "TIME")
    for_each([lock], socket, lambda delayed, lock: delayed.extend(lock, seconds))


@app.command(
    epilog="Examples: [bold]forebay items show crm customer-17[/bold]; "
    "[bold]forebay items show 0198c0de-1111-7222-8333-944444444444-17 --json[/bold]."
)
def show(
    target: Target, key: Key = None, as_json: Json = False, socket: DaemonSocket = None
) -> None:
    """Show an item: its state, times, attempts, errors and payload."""
    from daemon.cli.items.view import describe_item

    with open_client(socket) as client:
        item_id = target if key is None else find_key(client, target, key)
        item = client.control("items.show", id=item_id, payload=True)
    if as_json:
        print_json(item)
    else:
        typer.echo(describe_item(item, now_ms()))


@app.command(
    epilog="Examples: [bold]forebay items rm crm customer-17[/bold]; "
    "[bold]forebay items rm 0198c0de-1111-7222-8333-944444444444-17[/bold]."
)
def rm(target: Target, key: Key = None, socket: DaemonSocket = None) -> None:
    """Delete a waiting item, or a dead letter by its id. A leased item is not deleted."""
    with open_client(socket) as client:
        if key is None:
            client.control("items.delete", id=target)
        else:
            find_key(client, target, key)
            client.key_drop(target, key)


@app.command(epilog="Example: [bold]forebay items ls --queue crm --state COLD_QUEUED[/bold]")
def ls(
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only this queue.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only in this state: SPOOLED, SCHEDULED, QUEUED, COLD_QUEUED (most of what is due "
            "later), RUNNING, DONE, FAILED or DELETED.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only with this key.")] = None,
    correlation_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Only with this correlation id.")
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only if the last error contains this text."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only items enqueued longer ago.")
    ] = None,
    newer_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only items enqueued since then.")
    ] = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=1, help="List at most N.")
    ] = 50,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Find items in every state. All filters must match."""
    from daemon.cli.items.view import item_table
    from forebay.client import connect

    which: dict[str, Any] = {
        "queue": queue,
        "state": None if state is None else state.upper(),
        "key": key,
        "correlation_id": correlation_id,
        "error": error,
        "before_ms": _ago_ms(older_than, "--older-than"),
        "after_ms": _ago_ms(newer_than, "--newer-than"),
    }
    with connect(socket, TIMEOUT_S) as client:
        found = islice(_search(client, which), limit)
        if as_json:
            for item in found:
                print_json(item)
            return
        shown = list(found)
    if shown:
        print_table(item_table(shown, now_ms()))
    else:
        typer.echo("no items", err=True)


def _search(client: "Client", which: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = client.control("items.find", which=which, limit=SEARCH_PAGE, cursor=cursor)
        yield from page["items"]
        cursor = page["cursor"]
        if cursor is None:
            return


def _ago_ms(text: str | None, option: str) -> int | None:
    return None if text is None else now_ms() - round(parse_time(text, option) * 1000)


def parse_moment(text: str) -> "datetime":
    """ISO 8601; a time without a zone is local time."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as problem:
        raise typer.BadParameter(f"--at: {problem}") from problem


def find_key(client: "Client", queue: str, key: str) -> str:
    """The id of the item that has a key. Refused for a queue whose keys are not unique."""
    with usage():
        client.delayed(queue).contains(key)
    item_id: str = client.key_show(queue, key)["id"]
    return item_id


@contextmanager
def usage() -> "Iterator[None]":
    """Turns the client's argument errors into usage errors of the command line."""
    try:
        yield
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from problem


def for_each(texts: list[str], socket: str | None, act: "Callable[[Delayed, Any], None]") -> None:
    """Parses all locks before it uses the first one, and tries all before it reports a lost one."""
    from forebay.delayed import Lock, LockLost

    with usage():
        locks = [Lock.parse(text) for text in texts]
    lost: list[LockLost] = []
    with open_client(socket) as client, usage():
        for lock in locks:
            try:
                act(client.delayed(lock.queue), lock)
            except LockLost as problem:
                lost.append(problem)
    if lost:
        raise lost[0]
