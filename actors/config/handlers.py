"""The handlers of queues, as configured; http.py has that of http.

Errors that can be found without I/O are reported here, before anything starts. Whether a module can
be imported or a file written is checked when the handler is opened.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from actors.config.http import HttpHandler
from actors.config.secrets import TextOrSecret, text_of
from actors.config.section import MIB, BatchBytes, BatchItems, Clash, Count, Flag, Section, Timeout
from actors.model.units import Duration, Size, durations, format_duration, numbers, sizes

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class NullHandler(Section):
    """Discards items: every item counts as delivered."""

    type: Literal["null"] = "null"


class FileHandler(Section):
    """Appends to files: one JSON object per line, or Parquet.

    If the name contains `{time}`, files are written as `.part` and renamed when complete.
    """

    type: Literal["file"] = "file"
    path: Path
    """`{queue}` is replaced by the queue's name, `{time}` by the time a rolled file was begun."""
    format: Literal["jsonl", "parquet"] = "jsonl"
    roll_bytes: Annotated[Size, sizes("0", "1Ti")] = 0
    """Starts a new file at this size; 0: never (Parquet: for each batch)."""
    roll_interval: Annotated[Duration, durations("0s", "365d")] = 0
    """Starts a new file after this time; 0: never (Parquet: for each batch)."""
    fsync: Flag = False
    """Sync before an item counts as delivered."""
    batch_items: BatchItems = 10000
    batch_bytes: BatchBytes = 16 * MIB
    timeout: Timeout = 30

    @property
    def is_rolled(self) -> bool:
        return bool(self.roll_bytes or self.roll_interval) or self.format == "parquet"

    @field_validator("path")
    @classmethod
    def _only_these_are_filled_in(cls, path: Path) -> Path:
        rest = str(path).replace("{queue}", "").replace("{time}", "")
        if "{" in rest or "}" in rest:
            raise ValueError(f"{str(path)!r}: the only placeholders are {{queue}} and {{time}}")
        if "{time}" in str(path.parent):
            raise ValueError(f"{str(path)!r}: {{time}} belongs in the file's name")
        return path

    @model_validator(mode="after")
    def _rolled_files_have_names_of_their_own(self) -> Self:
        if self.is_rolled and "{time}" not in self.path.name:
            raise Clash(
                f"a {self.format} file that is rolled needs {{time}} in its name: {self.path}",
                "path",
            )
        return self

    @model_validator(mode="after")
    def _parquet_is_whole_in_time(self) -> Self:
        # An item counts as delivered when its file is complete: it waits until the file is closed.
        if self.format == "parquet" and self.roll_interval > self.timeout / 2:
            raise Clash(
                f"roll_interval ({format_duration(self.roll_interval)}) of a parquet file must "
                f"not be longer than half of timeout ({format_duration(self.timeout)})",
                "roll_interval",
                "timeout",
            )
        return self

    def path_for(self, queue: str, time: str = "") -> Path:
        return Path(str(self.path).replace("{queue}", queue).replace("{time}", time))


class PullHandler(Section):
    """Sends nothing: items wait for consumers that lease them."""

    type: Literal["pull"] = "pull"


class PythonHandler(Section):
    """Calls a function."""

    type: Literal["python"] = "python"
    function: str
    """`module:function`, async or not."""
    batch: Flag = False
    """Called with a list of items instead of one."""
    mode: Literal["auto", "thread", "process"] = "auto"
    """auto: an async function in the daemon's own loop (trio), any other in a thread."""
    batch_items: BatchItems = 100
    batch_bytes: BatchBytes = 4 * MIB
    timeout: Timeout = 30

    @field_validator("function")
    @classmethod
    def _function_is_named(cls, function: str) -> str:
        if not _FUNCTION.fullmatch(function):
            raise ValueError(f"{function!r} is not of the form module:function")
        return function


class CommandHandler(Section):
    """Feeds a program on its standard input; one process per batch."""

    type: Literal["command"] = "command"
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program and its arguments; no shell."""
    encoding: Literal["ndjson", "json", "raw"] = "ndjson"
    environment: dict[str, TextOrSecret] = Field(default={})
    """In addition to the usual variables (daemon/handlers/command/handler.py)."""
    inherit: tuple[str, ...] = ()
    """Further variables of the daemon's environment that are passed on."""
    directory: Path | None = None
    batch_items: BatchItems = 500
    batch_bytes: BatchBytes = 4 * MIB
    timeout: Timeout = 60
    """After this the program is told to stop, and killed after `kill_after`."""
    kill_after: Annotated[Duration, durations("0s", "5m")] = 2
    permanent_codes: tuple[Annotated[Count, numbers(1, 255)], ...] = (65,)
    """Exit codes that mean: do not retry. 65 is EX_DATAERR."""

    @field_validator("command")
    @classmethod
    def _command_can_be_passed_on(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0] or any("\0" in part for part in command):
            raise ValueError("a command is a list: the program, then its arguments")
        return command

    @field_validator("environment", "inherit")
    @classmethod
    def _variables_have_names(cls, given: Any) -> Any:
        for name in given:
            if not name or "=" in name or "\0" in name:
                raise ValueError(f"{name!r} is not a valid name of a variable")
        return given

    def environment_texts(self) -> dict[str, str]:
        """`environment` with the values of its secrets, which must have been read. Raises
        ValueError if one cannot be passed on."""
        texts = {name: text_of(value) for name, value in self.environment.items()}
        for name, text in texts.items():
            if "\0" in text:
                raise ValueError(f"{name} has a zero byte in it, which no variable can hold")
        return texts


def name_the_null_handler(value: object) -> object:
    """In YAML `{type: null}` gives None although the author means the word."""
    if isinstance(value, dict) and "type" in value and value["type"] is None:
        return {**value, "type": "null"}
    return value


AnyHandler = NullHandler | FileHandler | PullHandler | HttpHandler | PythonHandler | CommandHandler
Handler = Annotated[AnyHandler, Field(discriminator="type"), BeforeValidator(name_the_null_handler)]
