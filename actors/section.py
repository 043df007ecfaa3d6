"""What every section of the configuration is made of."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Strict

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

Count = Annotated[int, Strict()]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Clash(ValueError):
    """Values that are right alone and wrong together; `keys` are relative to the section."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def empty_in_this_version(value: dict[str, Any]) -> dict[str, Any]:
    if value:
        raise ValueError("is planned, but this version of forebay does not have it: leave it empty")
    return value
