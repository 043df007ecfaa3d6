"""The base of every section of the configuration."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Strict, ValidationError

from actors.model.masking import is_reference, masked
from actors.model.units import Duration, Size, durations, numbers, sizes
from forebay.errors import Refused
from forebay.limits import RUN_ITEMS_MAX


class BadSetting(Refused):
    """Refuses invalid settings that an operator gave at run time; names the reason and the key, so
    that a form can show the message at the field.
    """

    def __init__(self, text: str, field: str) -> None:
        super().__init__("BAD_REQUEST", text)
        self.field = field
        """A key such as `daily.at`; empty if the problem concerns several keys or none."""


def bad_setting(name: str, problem: ValueError) -> BadSetting:
    """The problem with the definition of this name; the first one if there are several."""
    if isinstance(problem, Clash):
        return BadSetting(f"{name}: {problem}", problem.keys[0] if len(problem.keys) == 1 else "")
    if not isinstance(problem, ValidationError):
        return BadSetting(f"{name}: {problem}", "name")
    first = problem.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    cause = first.get("ctx", {}).get("error")
    if not field and isinstance(cause, Clash):
        return bad_setting(name, cause)
    text = first["msg"].removeprefix("Value error, ")
    return BadSetting(f"{name}: {field}: {text}" if field else f"{name}: {text}", field)


KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

Count = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict()]
"""Strict: true is not 1, 0 is not false, and "5" is a text."""


BatchItems = Annotated[Count, numbers(1, 16 * RUN_ITEMS_MAX)]
BatchBytes = Annotated[Size, sizes("1Ki", "1Gi")]
Timeout = Annotated[Duration, durations("10ms", "1d")]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def shown(self, mode: Literal["json", "python"] = "json") -> dict[str, Any]:
        """The settings for display, with `***` for every secret. Everything that shows settings
        must use this. "json" formats sizes and durations for people."""
        found: dict[str, Any] = masked(self.model_dump(mode=mode))
        return found


class Clash(ValueError):
    """Values that are valid alone but not together; `keys` are relative to the section."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


_WHOLE: Final = frozenset(["item", "body", "payload"])
"""Templates and payloads: what they have are data, not settings."""


def merge(base: Any, over: Any) -> Any:
    """`over` laid over `base`, key by key. If both have a `type`, or both name a `preset`, and they
    differ, `over` alone: the keys of a file handler do not fit an http handler. Templates, payloads
    and references to secrets are replaced whole."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    if "type" in base and "type" in over and base["type"] != over["type"]:
        return over
    if base.get("preset") and over.get("preset") and base["preset"] != over["preset"]:
        return over
    if is_reference(base) and is_reference(over):
        return over
    return base | {
        key: merge(base[key], own) if key in base and key not in _WHOLE else own
        for key, own in over.items()
    }
