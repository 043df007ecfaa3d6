"""Shared by the commands that talk to a daemon: common options, connections, small parsers."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.process.terminal import clean, json_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from forebay.client import Client
    from forebay.control import Control

TIMEOUT_S: Final = 60.0
PIPE_COLUMNS: Final = 4096
"""The width of a table in a pipe, so that nothing is cut off."""

DaemonSocket = Annotated[
    str | None,
    typer.Option("--socket", metavar="PATH", help="The daemon's socket. \\[env: FOREBAY_SOCKET]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class Reason(StrEnum):
    """The values of a `failure_reason` option."""

    application = "application"
    business = "business"


def open_client(socket: str | None) -> "Client":
    """Use it in a `with` statement, which closes it."""
    from forebay.client import connect

    return connect(socket, TIMEOUT_S)


@contextmanager
def open_control(socket: str | None) -> Iterator["Control"]:
    from forebay.control import Control

    with open_client(socket) as client:
        yield Control(client.control)


def parse_time(text: str, option: str) -> float:
    """Seconds; `90s`, `5m`, `2h30m`, or a plain number."""
    from actors.model.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def read_priority(text: str) -> int | str:
    """Checks a number here; only the daemon knows the labels."""
    from forebay.priorities import read_number

    number = read_number(text)
    if number is None and text.lstrip("-").isdecimal():
        raise typer.BadParameter(f"--priority is 0 to 255 or a label, not {text!r}")
    return text if number is None else number


def resolve_priority(client: "Client", given: int | str) -> int:
    """The number that the daemon has for a label."""
    from forebay.errors import BadRun
    from forebay.priorities import resolve

    try:
        return resolve(given, client.priorities)
    except BadRun as error:
        raise typer.BadParameter(f"--priority: {error}") from error


def read_headers(given: list[str]) -> dict[str, str]:
    headers = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"--header is NAME=VALUE, not {pair!r}")
        headers[name] = value
    return headers


def make_sure(question: str, yes: bool) -> None:
    """Asks on a terminal. Without one, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Not a terminal: pass --yes to confirm")
    typer.confirm(question, abort=True, err=True)


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere. Call it with the number done so far."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = [TextColumn(what), BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done, total=max(done, total))


def print_json(value: Any) -> None:
    """One line."""
    typer.echo(json_text(value))


def new_table(*columns: str, right: tuple[str, ...] = (), wraps: tuple[str, ...] = ()) -> "Table":
    """`right`: columns of numbers. `wraps`: columns that may take several lines."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=name not in wraps
        )
    return table


def print_table(table: "Table") -> None:
    open_console().print(table)


def open_console() -> "Console":
    """As wide as the terminal; in a pipe, wide enough for any table. Text is cleaned before
    layout."""
    from rich.console import Console
    from rich.text import Text

    class CleanConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(clean(text), **options)

    return CleanConsole(width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def print_yaml(tree: dict[str, Any]) -> None:
    import yaml

    typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), nl=False)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def ago(then_ms: int, at_ms: int) -> str:
    """How long ago, in the largest unit that fits: `3m`, `2d`."""
    seconds = max(at_ms - then_ms, 0) // 1000
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
