"""`--set KEY=VALUE`: settings on the command line."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import typer

SETS: Final = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, as in the configuration: [bold]max_retries=3[/bold] or "
        "[bold]handler.type=pull[/bold]; may be repeated. A name with dots is quoted: "
        "[bold]'queues.\"org.acme\".max_retries=3'[/bold].",
    ),
]


def read_sets(sets: Iterable[str]) -> dict[str, Any]:
    """Parses `handler.type=pull` and the like into a tree of settings."""
    from daemon.config.yaml_source import read_scalar

    tree: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        path = list(split_key(key))
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


def split_key(key: str) -> Iterator[str]:
    """The parts of a key between its dots; a part in double quotes may have dots."""
    part, is_quoted = "", False
    for character in key:
        if character == '"':
            is_quoted = not is_quoted
        elif character == "." and not is_quoted:
            yield part
            part = ""
        else:
            part += character
    yield part
