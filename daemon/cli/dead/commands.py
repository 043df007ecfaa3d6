"""`forebay dead`: lists, shows, edits, retries and deletes dead letters."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import (
    TIMEOUT_S,
    DaemonSocket,
    Json,
    Reason,
    Yes,
    counted,
    make_sure,
    now_ms,
    open_control,
    parse_time,
    print_json,
    print_table,
    show_progress,
)
from daemon.cli.dead.groups import group_table, read_groups
from daemon.cli.dead.view import COUNT_MAX, describe, how_many, letter_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.control import Control

GROUPED_MAX: Final = 100_000

app = typer.Typer(
    no_args_is_help=True,
    help="Dead letters: items that were given up after their last retry, or because the "
    "destination rejected them.",
    epilog="Where to begin: [bold]groups[/bold] counts them by error, and [bold]show[/bold] shows "
    "one of them. Once the cause is fixed, [bold]retry[/bold] sends them again; [bold]edit[/bold] "
    "changes a payload; [bold]rm[/bold] deletes them for good.",
)

Queue = Annotated[str | None, typer.Option(metavar="NAME", help="Only this queue.")]
Flow = Annotated[str | None, typer.Option(metavar="NAME", help="Only this flow.")]
Action = Annotated[str | None, typer.Option(metavar="NAME", help="Only this action.")]
Error = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Only if the last error contains this text."),
]
WhichReason = Annotated[
    Reason | None,
    typer.Option("--reason", help="Only if the last failure has this reason."),
]
OlderThan = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only if dead for longer than e.g. 2h or 7d.")
]
NewerThan = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only if dead for less than e.g. 30m.")
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Only this item; may be repeated."),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters of all queues.")]
ItemId = Annotated[str, typer.Argument(metavar="ID", help="The item's id.")]


@app.command(epilog="Example: [bold]forebay dead ls --queue crm --error timeout[/bold]")
def ls(
    queue: Queue = None,
    flow: Flow = None,
    action: Action = None,
    error: Error = None,
    reason: WhichReason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    ids: Ids = None,
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=1, help="List at most N.")
    ] = 50,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """List dead letters, oldest first.

    All filters must match: [bold]--queue crm --error timeout[/bold] lists those of crm that timed
    out.
    """
    which = filters(queue, flow, action, error, reason, older_than, newer_than, ids)
    with open_control(socket) as control:
        letters = control.dead_letters(which, limit=limit)
        if as_json:
            for letter in letters:
                print_json(letter)
            return
        shown = list(letters)
        more = control.dead_count(which, stop_at=COUNT_MAX) - len(shown) if shown else 0
    if not shown:
        typer.echo("no dead letters", err=True)
        return
    print_table(letter_table(shown, now_ms()))
    if more > 0:
        typer.echo(f"… and {how_many(more)} more: see --limit", err=True)


@app.command(
    epilog="Examples: [bold]forebay dead groups[/bold]; [bold]forebay dead groups --queue crm "
    "--newer-than 1h[/bold]. Then: [bold]forebay dead show ID[/bold] for one of them, "
    "[bold]forebay dead retry --queue crm --error TEXT[/bold] for all of a group."
)
def groups(
    queue: Queue = None,
    flow: Flow = None,
    action: Action = None,
    error: Error = None,
    reason: WhichReason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Annotated[
        int,
        typer.Option("-n", "--limit", metavar="N", min=1, help="Read at most about N letters."),
    ] = GROUPED_MAX,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Count dead letters by their last error, with an example of each.

    Errors that differ only in numbers, ids and quoted words are counted together. Letters are read
    from the oldest on; if not all were read, the command says so.
    """
    from forebay.client import connect

    which = filters(queue, flow, action, error, reason, older_than, newer_than, None)
    with connect(socket, TIMEOUT_S) as client:
        found = read_groups(client.control, which, limit)
    if as_json:
        for group in found.groups:
            print_json(group.as_object())
    elif found.groups:
        print_table(group_table(found.groups, now_ms()))
    else:
        typer.echo("no dead letters", err=True)
    if not found.is_complete:
        read = f"the {found.letters:,} oldest"
        typer.echo(f"counts cover {read} only: see --limit", err=True)


@app.command(
    epilog="Example: [bold]forebay dead show 0198c0de-0a00-7000-8000-000000000001-17[/bold]"
)
def show(
    item_id: ItemId,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print only the payload, byte for byte as pushed.")
    ] = False,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Show one dead letter: its properties, the error of each attempt, and its payload."""
    with open_control(socket) as control:
        letter = fetch(control, item_id)
    if as_json:
        print_json(letter)
    elif raw:
        from forebay.control import letter_payload

        sys.stdout.buffer.write(letter_payload(letter))
        sys.stdout.buffer.flush()
    else:
        typer.echo(describe(letter, now_ms()))


@app.command(
    epilog="Examples: [bold]forebay dead retry --queue crm --error timeout[/bold]; "
    "[bold]forebay dead retry --id ID[/bold]"
)
def retry(
    queue: Queue = None,
    flow: Flow = None,
    action: Action = None,
    error: Error = None,
    reason: WhichReason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    ids: Ids = None,
    everything: All = False,
    yes: Yes = False,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Retry dead letters: they are due at once, and their attempts are counted from 0 again.

    They keep their ids. Unless they are named by [bold]--id[/bold], the command shows how many
    match and asks for confirmation.
    """
    which = filters(queue, flow, action, error, reason, older_than, newer_than, ids)
    _check_chosen(which, everything)
    with open_control(socket) as control:
        _change(control, which, control.dead_retry, ("Retry", "retried"), yes, as_json)


@app.command(epilog="Example: [bold]forebay dead rm --queue crm --older-than 30d[/bold]")
def rm(
    queue: Queue = None,
    flow: Flow = None,
    action: Action = None,
    error: Error = None,
    reason: WhichReason = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    ids: Ids = None,
    everything: All = False,
    yes: Yes = False,
    as_json: Json = False,
    socket: DaemonSocket = None,
) -> None:
    """Delete dead letters for good. They are counted as deleted."""
    which = filters(queue, flow, action, error, reason, older_than, newer_than, ids)
    _check_chosen(which, everything)
    with open_control(socket) as control:
        _change(control, which, control.dead_remove, ("Delete", "deleted"), yes, as_json)


@app.command(
    epilog="Examples: [bold]forebay dead edit ID --retry[/bold]; "
    "[bold]jq .fixed item.json | forebay dead edit ID --payload-file -[/bold]"
)
def edit(
    item_id: ItemId,
    payload_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-",
            help="The new payload; - is standard input. Default: opens $VISUAL or $EDITOR.",
        ),
    ] = None,
    then_retry: Annotated[bool, typer.Option("--retry", help="Retry it at once.")] = False,
    socket: DaemonSocket = None,
) -> None:
    """Replace the payload of a dead letter. It keeps its id, and stays dead until it is retried."""
    from forebay.control import letter_payload

    with open_control(socket) as control:
        old = letter_payload(fetch(control, item_id))
        new = edit_bytes(old) if payload_file is None else read_bytes(payload_file)
        if new == old:
            typer.echo(f"{item_id}: nothing changed")
        else:
            control.dead_edit(item_id, new)
            typer.echo(f"{item_id}: new payload of {counted(len(new), 'byte')}")
        if then_retry:
            control.dead_retry({"ids": [item_id]})
            typer.echo(f"{item_id} retried")


def filters(
    queue: str | None,
    flow: str | None,
    action: str | None,
    error: str | None,
    reason: Reason | None,
    older_than: str | None,
    newer_than: str | None,
    ids: list[str] | None,
) -> dict[str, Any]:
    """The filters as the daemon expects them."""
    at_ms = now_ms()
    which: dict[str, Any] = {"queue": queue, "flow": flow, "action": action, "error": error}
    which["failure_reason"] = None if reason is None else reason.value
    if older_than is not None:
        which["died_before_ms"] = at_ms - round(parse_time(older_than, "--older-than") * 1000)
    if newer_than is not None:
        which["died_after_ms"] = at_ms - round(parse_time(newer_than, "--newer-than") * 1000)
    if ids:
        which["ids"] = ids
    return {name: value for name, value in which.items() if value is not None}


def fetch(control: "Control", item_id: str) -> dict[str, Any]:
    from forebay.errors import Refused

    for letter in control.dead_letters({"ids": [item_id]}, limit=1, payloads=True):
        return letter
    raise Refused("NOT_FOUND", f"no dead letter {item_id}")


def _check_chosen(which: dict[str, Any], everything: bool) -> None:
    if bool(which) is everything:
        raise typer.BadParameter("say which dead letters, e.g. --queue crm, or pass --all")


def _change(
    control: "Control",
    which: dict[str, Any],
    do: "Callable[..., int]",
    words: tuple[str, str],
    yes: bool,
    as_json: bool,
) -> None:
    """Asks unless items are named, changes them step by step, and prints how many."""
    count = control.dead_count(which, stop_at=COUNT_MAX)
    done = 0
    if count:
        noun = "dead letter" if count == 1 else "dead letters"
        make_sure(f"{words[0]} {how_many(count)} {noun}?", yes or set(which) == {"ids"})
        with show_progress(words[0], count) as advance:
            done = do(which, progress=advance)
    if as_json:
        print_json({"done": done})
    elif count:
        typer.echo(f"{counted(done, 'dead letter')} {words[1]}")
    else:
        typer.echo("no dead letters match")


def edit_bytes(old: bytes) -> bytes:
    """Opens $VISUAL, $EDITOR or vi on a private file with the bytes; returns the edited bytes."""
    import shlex
    import subprocess
    import tempfile

    from forebay.errors import ForebayError

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="forebay-") as directory:
        file = Path(directory) / "payload"
        file.write_bytes(old)
        try:
            done = subprocess.run([*shlex.split(editor), str(file)], check=False)
        except (FileNotFoundError, PermissionError) as error:
            raise ForebayError(
                f"the editor {editor!r} cannot be started: set $EDITOR, or give --payload-file"
            ) from error
        if done.returncode:
            raise ForebayError(f"the editor exited with {done.returncode}: nothing changed")
        new = file.read_bytes()
    # Editors append a final line feed that the user did not type.
    return new[:-1] if new.endswith(b"\n") and not old.endswith(b"\n") else new


def read_bytes(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
