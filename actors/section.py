"""What every section of the configuration is made of."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Strict

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

Count = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict()]
"""Strict: true is not 1, 0 is not false, and "5" is a text."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Clash(ValueError):
    """Values that are right alone and wrong together; `keys` are relative to the section."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys
