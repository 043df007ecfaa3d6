"""An operation: one thing that people can ask of the daemon, written once.

The class says everything about it: its fields, who may ask, its HTTP route, its command, an
example, and what it does. The socket (CONTROL), REST with OpenAPI, the command line, the typed
client and docs/reference/operations.md are made from the table of all operations
(actors/control/table.py).

Fields are checked strictly: nothing is converted, unknown names are refused. A null is a field that
was left out. The first line of the docstring is the summary; `perform` does the work, usually in
one step of one actor, and returns a view of the resulting state.
"""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from actors.model.masking import holds_mask
from actors.model.refusals import bad_request
from forebay.limits import QUEUE_BYTES_MAX

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from actors.control.actors import Actors

Role = Literal["read", "push", "consume", "admin"]
"""Who may ask. An admin may do everything."""

LIMIT_MAX: Final = 1000
FLOW_CHARACTERS_MAX: Final = 255
QUEUE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Http(NamedTuple):
    """The route of an operation. Fields that are not in the path are parameters of GET and DELETE,
    and otherwise members of the body, unless `query` names them."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    status: int = 200
    query: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    """The problems of this operation, beside those that every route has."""


@dataclass(frozen=True, slots=True)
class About:
    """What an operation is called, and how it is reached."""

    name: str
    """Its group and its verb: `queues.pause`. The command line says `forebay queues pause`."""
    role: Role
    example: Mapping[str, Any]
    """Fields that a running daemon accepts; the documentation shows them, and a test sends them."""
    http: Http | None = None
    has_command: bool = True
    asks: str = ""
    """What the command asks before it goes on, for what cannot be undone: with names of fields in
    braces."""
    done: str = ""
    """What the command says afterwards, if its view has no rendering of its own."""
    repeats: str = ""
    """The member of the answer that asks for a further call: `cursor` or `more`."""
    counts: str = ""
    """The member of the answers that is added up over these calls."""
    see_also: str = field(default="")
    """A page of the documentation."""

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def verb(self) -> str:
        return self.name.partition(".")[2]


class View(BaseModel):
    """What an operation answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Operation(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    about: ClassVar[About]

    async def perform(self, actors: "Actors") -> View | None:
        """Does it. Raises Refused, StoreUnavailable or StoreCorrupt."""
        raise AssertionError(f"{type(self).__name__} does not say what it does")

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Raises Refused with the first problem."""
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise bad_request(_problem(cls, error)) from None

    @classmethod
    def answer(cls) -> type[View] | None:
        """The class of its view; None: the answer is empty."""
        returned = cls.perform.__annotations__["return"]
        return None if returned is None else returned

    @classmethod
    def summary(cls) -> str:
        return paragraphs(cls)[0]


def paragraphs(cls: type[BaseModel]) -> list[str]:
    """The docstring, one line per paragraph."""
    return [" ".join(text.split()) for text in (cls.__doc__ or "").split("\n\n") if text.strip()]


def _problem(cls: type[BaseModel], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    text = _text(cls, first)
    if first["type"] == "extra_forbidden" or not where:
        return text
    return f"{where} {text}" if text.startswith("must ") else f"{where}: {text}"


_TEXTS: Final = {
    "missing": "must be given",
    "string_type": "must be a text",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must be a name: letters, digits, '.', '_' and '-'",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "list_type": "must be a list",
    "too_long": "must have at most {max_length} entries",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}


def _text(cls: type[BaseModel], details: "ErrorDetails") -> str:
    if details["type"] == "extra_forbidden":
        name = str(details["loc"][-1])
        near = get_close_matches(name, cls.model_fields, 1)
        return f"unknown field {name!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
    text = _TEXTS.get(details["type"])
    if text is not None:
        return text.format(**details.get("ctx", {}))
    text = details["msg"].removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


# Fields that several operations have.

QueueName = Annotated[
    str,
    Field(
        description="The queue's name.",
        min_length=1,
        max_length=QUEUE_BYTES_MAX,
        pattern=QUEUE_PATTERN,
        examples=["crm"],
    ),
]
Flow = Annotated[
    str | None,
    Field(
        description="Only this flow of the queue.",
        max_length=FLOW_CHARACTERS_MAX,
        examples=["nightly"],
    ),
]
Limit = Annotated[int, Field(description="The most entries in one answer.", ge=1, le=LIMIT_MAX)]
Cursor = Annotated[
    str | None,
    Field(description="The cursor of the page before; none: the first page.", max_length=1000),
]


def _unmasked(settings: dict[str, Any]) -> dict[str, Any]:
    if holds_mask(settings):
        raise ValueError("a secret is masked as ***: leave it out, or give it in full")
    return settings


Settings = Annotated[
    dict[str, Any],
    AfterValidator(_unmasked),
    Field(description="Keys and values as in etc/forebay.yaml."),
]


def read_payload(text: str | None, encoded: str | None) -> bytes | None:
    """The payload of a request that gives it as text or in base64; None: neither."""
    if encoded is None:
        return None if text is None else text.encode()
    if text is not None:
        raise bad_request("give payload or payload_b64, not both")
    try:
        return b64decode(encoded, validate=True)
    except ValueError:
        raise bad_request("payload_b64: not base64") from None
