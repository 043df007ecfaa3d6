"""The commands of the operations, made from their manifest (manifest.json, which `python -m
daemon.generate` writes): `--help` imports no models of the daemon.

`forebay GROUP VERB`: required fields are arguments, the others options; settings are given with
`--set KEY=VALUE`. A command for what cannot be undone asks first. Where an answer says that there
is more, the command goes on until there is none. `--json` prints the answer as it is; otherwise
daemon/cli/renderings.py says how people see it.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from daemon.cli.client import DaemonSocket, Json, Yes, make_sure, open_client, print_json
from daemon.cli.renderings import render
from daemon.cli.sets import SETS, read_sets

Command = Mapping[str, Any]
PAGE: Final = 500
_TYPES: Final[Mapping[str, Any]] = {"text": str, "number": int, "flag": bool, "texts": list[str]}


@cache
def commands() -> Sequence[Command]:
    found: list[Command] = json.loads(Path(__file__).with_name("manifest.json").read_text())[
        "commands"
    ]
    return found


GROUPS: Final[Mapping[str, tuple[str, str]]] = {
    "queues": (
        "List, add, change, pause, empty and remove queues.",
        "A queue comes from the configuration file ([bold]queues:[/bold]), from [bold]add[/bold] "
        "here, or from the first push to it. Its handler, e.g. [bold]http[/bold], delivers its "
        "items; with type [bold]pull[/bold] they wait for consumers: see [bold]forebay "
        "pull[/bold]. All settings, with defaults and ranges, are in etc/forebay.yaml.",
    ),
    "breakers": (
        "Circuit breakers: one per destination. They stop sending to a destination that is down.",
        "A breaker is [bold]closed[/bold] while deliveries succeed. After "
        "[bold]breaker.threshold[/bold] consecutive failures it [bold]opens[/bold]: nothing is "
        "sent, and no item uses up an attempt. After [bold]breaker.reset_timeout[/bold] it is "
        "[bold]half open[/bold]: a few items are sent as a trial. Their outcome closes the breaker "
        "or opens it again.",
    ),
    "keys": (
        "Unique keys: which item has one, and taking it back (docs/delivery.md).",
        "A queue has unique keys if [bold]unique[/bold] is set.",
    ),
    "streams": (
        "Consumers that read a queue as a stream, like Spark's readStream.",
        "A consumer exists once it has made a claim.",
    ),
    "fleet": (
        "The daemons that share a PostgreSQL (docs/fleet.md).",
        "Every daemon writes a row every 5 s. A daemon is [bold]lost[/bold] if it has not done so "
        "for a minute: it was killed, or does not reach PostgreSQL. Start a daemon on its state "
        "directory to drain its journal.",
    ),
}
"""What the help of a group says first and last."""


def group(name: str) -> typer.Typer:
    """The commands of a group of operations."""
    first, last = GROUPS[name]
    app = typer.Typer(no_args_is_help=True, help=first, epilog=last)
    for command in commands():
        of_group, _, verb = command["name"].partition(".")
        if of_group == name:
            example = f"Example: [bold]{_example(command)}[/bold]"
            app.command(verb, help=command["help"], epilog=example)(_callback(command))
    return app


def _example(command: Command) -> str:
    words = ["forebay", *command["name"].split(".")]
    kinds = {field["name"]: field for field in command["fields"]}
    for name, value in command["example"].items():
        field = kinds.get(name)
        if field is None or field["kind"] == "object":
            words += [f"--set {key}={said}" for key, said in _flat(value)]
        elif field.get("is_required"):
            words.append(str(value))
        else:
            words.append(f"{_option(name)} {value}")
    return " ".join([*words, *(["--yes"] if "asks" in command else [])])


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _callback(command: Command) -> Callable[..., None]:
    def callback(**given: Any) -> None:
        as_json, socket = given.pop("as_json"), given.pop("socket")
        is_sure = given.pop("yes", True)
        fields = _read(command, given)
        if "asks" in command:
            make_sure(command["asks"].format(**fields), is_sure)
        with open_client(socket) as client:
            answer = _ask(command, client.control, fields)
        if as_json:
            for one in answer[command["lists"]] if "lists" in command else (answer,):
                print_json(one)
        else:
            render(command, fields, answer)

    parameters = [_parameter(field) for field in command["fields"] if _is_shown(command, field)]
    if "asks" in command:
        parameters.append(_keyword("yes", Yes, False))
    parameters += [_keyword("as_json", Json, False), _keyword("socket", DaemonSocket, None)]
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return callback


def _is_shown(command: Command, field: Mapping[str, Any]) -> bool:
    """Pages are turned by the command itself."""
    return not ("repeats" in command and field["name"] in ("cursor", "limit"))


def _ask(
    command: Command, perform: Callable[..., dict[str, Any]], fields: dict[str, Any]
) -> dict[str, Any]:
    """The answer; of several calls, the lists joined and the counts added up."""
    repeats = command.get("repeats")
    paged = {"limit": PAGE} if any(f["name"] == "limit" for f in command["fields"]) else {}
    answer = perform(command["name"], **fields, **(paged if repeats == "cursor" else {}))
    while repeats and (mark := answer[repeats]):
        more = {"cursor": mark} | paged if repeats == "cursor" else {}
        answer = _joined(answer, perform(command["name"], **fields, **more), command.get("counts"))
    return answer


def _joined(first: dict[str, Any], then: dict[str, Any], counts: str | None) -> dict[str, Any]:
    return {
        name: first[name] + value if isinstance(value, list) or name == counts else value
        for name, value in then.items()
    }


def _read(command: Command, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the operation, without those that were not given."""
    fields: dict[str, Any] = {}
    for field in command["fields"]:
        value = given.get(field["name"])
        if field["kind"] == "object":
            tree = read_sets(value or ())
            if field.get("is_required") and not tree:
                raise typer.BadParameter("nothing to change: pass --set, e.g. --set max_retries=3")
            value = tree or None
        if value is None or value is False or value == []:
            continue
        within = fields.setdefault(field["group"], {}) if "group" in field else fields
        within[field["name"]] = value
    return fields


def _parameter(field: Mapping[str, Any]) -> inspect.Parameter:
    name, kind = field["name"], field["kind"]
    if kind == "object":
        return _keyword(name, SETS, None)
    annotation = Literal[tuple(field["choices"])] if kind == "choice" else _TYPES[kind]
    if field.get("is_required"):
        argument = typer.Argument(metavar=name.upper(), help=field["help"])
        return _keyword(name, Annotated[annotation, argument], inspect.Parameter.empty)
    option = typer.Option(_option(name), help=field["help"])
    if kind == "flag":
        return _keyword(name, Annotated[bool, option], False)
    return _keyword(name, Annotated[annotation | None, option], None)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
