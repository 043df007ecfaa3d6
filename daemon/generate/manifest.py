"""The command line's manifest: each operation's command, without the models behind it."""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from actors.control.operation import Operation, paragraphs
from actors.control.table import OPERATIONS
from daemon.generate.fields import type_of


def manifest() -> str:
    commands = [
        _command(operation) for operation in OPERATIONS.values() if operation.about.has_command
    ]
    return json.dumps({"commands": commands}, indent=1, ensure_ascii=False) + "\n"


def _command(operation: type[Operation]) -> dict[str, Any]:
    about = operation.about
    found: dict[str, Any] = {
        "name": about.name,
        "help": "\n\n".join(paragraphs(operation)),
        "fields": _fields(operation, ""),
        "example": dict(about.example),
    }
    answer = operation.answer()
    lists = [] if answer is None else list(_lists(answer))
    if about.verb == "ls" and len(lists) == 1:
        found["lists"] = lists[0]
    for name in ("asks", "done", "repeats", "counts"):
        if getattr(about, name):
            found[name] = getattr(about, name)
    return found


def _lists(view: type[BaseModel]) -> Iterator[str]:
    """The members of a view that are lists of views."""
    for name, field in view.model_fields.items():
        inner = get_args(field.annotation)
        if get_origin(field.annotation) is list and issubclass(inner[0], BaseModel):
            yield name


def _fields(model: type[BaseModel], group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, field in model.model_fields.items():
        kind = type_of(field)
        if kind.group is not None:
            found += _fields(kind.group, name)
        else:
            found.append(_field(name, field, group))
    return found


def _field(name: str, field: FieldInfo, group: str) -> dict[str, Any]:
    kind = type_of(field)
    found: dict[str, Any] = {"name": name, "kind": kind.kind, "help": field.description or ""}
    if kind.choices:
        found["choices"] = list(kind.choices)
    if field.is_required():
        found["is_required"] = True
    if group:
        found["group"] = group
    return found
