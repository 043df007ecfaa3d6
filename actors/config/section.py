"""The base of every section of the configuration."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Strict

from actors.model.masking import masked

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

Count = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict()]
"""Strict: true is not 1, 0 is not false, and "5" is a text."""


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
