"""The fields of operations, in the words of the files that are made from them."""

import types
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_PLAIN: Final = {str: "text", int: "number", float: "number", bool: "flag"}


class FieldType(NamedTuple):
    kind: Literal["text", "number", "flag", "choice", "object", "texts", "group"]
    choices: tuple[str, ...] = ()
    group: type[BaseModel] | None = None


def type_of(field: FieldInfo) -> FieldType:
    """Raises TypeError for a type that no operation has had so far."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (one for one in get_args(annotation) if one is not type(None))
    if annotation in _PLAIN:
        return FieldType(_PLAIN[annotation])  # type: ignore[arg-type]
    origin = get_origin(annotation)
    if origin is Literal:
        return FieldType("choice", get_args(annotation))
    if origin is dict or annotation is dict:
        return FieldType("object")
    if origin is list:
        return FieldType("texts")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return FieldType("group", group=annotation)
    raise TypeError(f"no interface knows fields of type {annotation}")
