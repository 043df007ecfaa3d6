"""Refuses invalid settings that an operator gave at run time; names the reason and the key, so that
a form can show the message at the field."""

from pydantic import ValidationError

from actors.config.section import Clash
from forebay.errors import Refused


class BadSetting(Refused):
    def __init__(self, text: str, field: str) -> None:
        super().__init__("BAD_REQUEST", text)
        self.field = field
        """A key such as `daily.at`; empty if the problem concerns several keys or none."""


def bad_setting(name: str, problem: ValueError) -> BadSetting:
    """The problem with the definition of this name; the first one if there are several."""
    if not isinstance(problem, ValidationError):
        return BadSetting(f"{name}: {problem}", "name")
    first = problem.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    cause = first.get("ctx", {}).get("error")
    if not field and isinstance(cause, Clash):
        return BadSetting(f"{name}: {text}", cause.keys[0] if len(cause.keys) == 1 else "")
    return BadSetting(f"{name}: {field}: {text}" if field else f"{name}: {text}", field)
