"""The typed client: one method per operation, without the models behind it."""

import textwrap
import types
from collections.abc import Iterator
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from actors.control.operation import Operation, View, paragraphs
from actors.control.table import OPERATIONS
from daemon.generate.fields import type_of

HEAD: Final = '''"""Every operation of the daemon as a method (docs/reference/operations.md).

    with forebay.connect() as client:
        operations = forebay.Operations(client.control)
        print(operations.queues_show("crm")["held"])

Written by `python -m daemon.generate`: change the operations in actors/control instead.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypedDict, cast


class Perform(Protocol):
    """`Client.control`: an operation and its fields, for its answer."""

    def __call__(self, op: str, /, **fields: Any) -> dict[str, Any]: ...
'''
WIDTH: Final = 100


def typed_client() -> str:
    views: dict[str, type[BaseModel]] = {}
    for operation in OPERATIONS.values():
        answer = operation.answer()
        if answer is not None:
            _collect(answer, views)
    parts = [HEAD]
    parts += [_view(view) for view in views.values()]
    methods = "\n".join(_method(operation) for operation in OPERATIONS.values())
    parts.append(
        "class Operations:\n"
        "    def __init__(self, perform: Perform) -> None:\n"
        "        self._perform = perform\n\n" + methods
    )
    return "\n\n".join(part.rstrip() + "\n" for part in parts)


def _collect(view: type[BaseModel], views: dict[str, type[BaseModel]]) -> None:
    """What a view is made of comes before it."""
    for field in view.model_fields.values():
        for inner in _models(field.annotation):
            _collect(inner, views)
    views.setdefault(view.__name__, view)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _view(view: type[BaseModel]) -> str:
    text = (view.__doc__ or "").strip()
    lines = [f"class {view.__name__}(TypedDict):"]
    if text and view.__doc__ != View.__doc__:
        lines += [_docstring(" ".join(text.split()), " " * 4), ""]
    for name, field in view.model_fields.items():
        lines.append(f"    {name}: {_said(field.annotation)}")
    return "\n".join(lines) + "\n"


def _said(annotation: Any) -> str:
    """A type as it is written in the client."""
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Any:
        return "Any"
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(_said(one) for one in inner)
    if origin is Literal:
        return f"Literal[{', '.join(_quoted(one) for one in inner)}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_said(one) for one in inner)}]"
    return str(annotation.__name__)


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _method(operation: type[Operation]) -> str:
    about, answer = operation.about, operation.answer()
    parameters = ["self"]
    is_named = False
    for name, field in operation.model_fields.items():
        if not field.is_required() and not is_named:
            parameters.append("*")
            is_named = True
        parameters.append(_parameter(name, field))
    returned = "None" if answer is None else answer.__name__
    head = f"    def {about.name.replace('.', '_')}"
    lines = [f"{head}({', '.join(parameters)}) -> {returned}:"]
    if len(lines[0]) > WIDTH:
        lines = [f"{head}(", f"        {', '.join(parameters)}", f"    ) -> {returned}:"]
        if len(lines[1]) > WIDTH:
            each = [f"        {parameter}," for parameter in parameters]
            lines = [f"{head}(", *each, f"    ) -> {returned}:"]
    lines.append(_docstring(paragraphs(operation)[0], " " * 8))
    given = "".join(f", {name}={name}" for name in operation.model_fields)
    call = f'self._perform("{about.name}"{given})'
    body = f"        {call}" if answer is None else f"        return cast({returned}, {call})"
    if len(body) > WIDTH:
        names = [f"                {name}={name}," for name in operation.model_fields]
        body = "\n".join(
            [
                "        return cast(",
                f"            {returned},",
                "            self._perform(",
                f'                "{about.name}",',
                *names,
                "            ),",
                "        )",
            ]
        )
    lines.append(body)
    return "\n".join(lines) + "\n"


def _docstring(text: str, indent: str) -> str:
    quoted = f'"""{text}"""'
    return "\n".join(textwrap.wrap(quoted, WIDTH, initial_indent=indent, subsequent_indent=indent))


def _parameter(name: str, field: FieldInfo) -> str:
    kind = type_of(field)
    said = "Mapping[str, Any]" if kind.kind in ("object", "group") else _said(field.annotation)
    if field.is_required():
        return f"{name}: {said}"
    default = field.get_default(call_default_factory=True)
    if kind.kind in ("object", "group"):
        return f"{name}: {said} | None = None"
    return f"{name}: {said} = {_quoted(default)}"
