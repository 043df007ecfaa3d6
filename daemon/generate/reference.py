"""docs/reference/operations.md."""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from actors.control.operation import Operation, paragraphs
from actors.control.table import OPERATIONS
from daemon.generate.fields import type_of

HEAD: Final = """# Operations

Everything that people and programs can ask of a daemon, apart from pushing and pulling items. Each operation can be reached in four ways, with the same fields and the same answer:

- over the Unix socket: a CONTROL frame with `op` and the fields ([protocol.md](../protocol.md#control)),
- over HTTP, where a route is given ([rest.md](../rest.md) has access, problems and limits; `/openapi.json` describes every route),
- with the command `forebay`, where one is given; every command takes `--json`, and `--help` explains it,
- from Python: `forebay.Operations(client.control)` has a method for each, named like the operation with an underscore.

Fields are strict: a number is not a text, an unknown field is refused, and a null is a field that is left out. An operation is done when it is answered; one that was not answered may or may not be done, and may be repeated.

This page is written by `python -m daemon.generate`. Every example is run by a test.
"""


def reference() -> str:
    groups: dict[str, list[type[Operation]]] = {}
    for operation in OPERATIONS.values():
        groups.setdefault(operation.about.group, []).append(operation)
    parts = [HEAD]
    for group, operations in groups.items():
        parts.append(f"## {group}\n")
        parts += ["\n".join(_described(operation)) for operation in operations]
    return "\n".join(parts)


def _described(operation: type[Operation]) -> Iterator[str]:
    about = operation.about
    yield f"### {about.name}\n"
    for paragraph in paragraphs(operation):
        yield paragraph + "\n"
    yield "| | |"
    yield "|---|---|"
    yield f"| role | `{about.role}` |"
    if about.has_command:
        yield f"| command | `{command_line(operation)}` |"
    if about.http is not None:
        yield f"| HTTP | `{about.http.method} {about.http.path}` |"
    yield ""
    fields = list(_rows(operation, ""))
    if fields:
        yield "| field | type | |"
        yield "|---|---|---|"
        yield from fields
        yield ""
    yield f"    {_json({'op': about.name, **about.example})}"
    answer = operation.answer()
    examples = answer.model_config.get("json_schema_extra") if answer is not None else None
    if isinstance(examples, Mapping):
        found: Any = examples["examples"]
        yield f"    {_json(found[0])}"
    elif answer is None:
        yield "    {}"
    yield ""


def command_line(operation: type[Operation]) -> str:
    """The example as a command."""
    about = operation.about
    words = ["forebay", about.group, *([about.verb] if about.verb else [])]
    for name, value in about.example.items():
        words += _words(operation, name, value)
    if about.asks:
        words.append("--yes")
    return shlex.join(words)


def _words(operation: type[Operation], name: str, value: Any) -> list[str]:
    field = operation.model_fields[name]
    kind = type_of(field)
    if kind.kind == "object":
        return [word for key, said in _flat(value, "") for word in ("--set", f"{key}={said}")]
    if kind.group is not None:
        return [word for key, said in value.items() for word in _words(kind.group, key, said)]  # type: ignore[arg-type]
    if field.is_required():
        return [str(value)]
    option = f"--{name.replace('_', '-')}"
    if kind.kind == "flag":
        return [option] if value else []
    if kind.kind == "texts":
        return [word for one in value for word in (option, one)]
    return [option, str(value)]


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value)


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = type_of(field)
        if kind.group is not None:
            yield from _rows(kind.group, f"{prefix}{name}.")
        else:
            yield f"| `{prefix}{name}` | {_type(field)} | {_about(field)} |"


def _type(field: FieldInfo) -> str:
    kind = type_of(field)
    if kind.choices:
        return ", ".join(f"`{choice}`" for choice in kind.choices)
    return {"texts": "list of texts"}.get(kind.kind, kind.kind)


def _about(field: FieldInfo) -> str:
    said = [field.description or ""]
    if field.is_required():
        said.append("Required.")
    elif (default := field.get_default(call_default_factory=True)) not in (None, {}, []):
        said.append(f"Default: `{_json(default)}`.")
    return " ".join(text for text in said if text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
