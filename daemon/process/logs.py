"""How the daemon speaks to its operator: one line on stderr for what somebody would act on.

A readable line on a terminal, a JSON object a line otherwise (`log.format`). An event is a
constant such as `spooler.chunk_sealed`, its values are fields, and times are UTC. Passwords and
tokens in addresses are masked, wherever an error or a traceback quotes one.

Writing a log line never fails: with stderr on a full disk or a closed pipe the line is lost, and
the daemon, which has to drain that very disk, goes on.
"""

import sys
import threading
from typing import IO, Any, Final

import structlog
from structlog.typing import EventDict, Processor

from actors.config.settings import LogSettings
from actors.model.masking import masked_address
from daemon.process.terminal import REPLACEMENT, clean, unguarded

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Sink:
    """Writes whole lines; threads may share it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                # ValueError: the stream was closed. There is nobody left to tell.
                pass

    debug = info = warning = error = critical = exception = msg


def set_up(settings: LogSettings, stream: IO[str] | None = None) -> None:
    """For the whole process. Loggers that were made before follow, unless they have logged."""
    stream = unguarded(sys.stderr) if stream is None else stream
    console = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    sink = Sink(stream)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _masked,
            *(_console(stream) if console else _json()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level]),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=True,
    )


def _console(stream: IO[str]) -> list[Processor]:
    plain = structlog.dev.plain_traceback
    render = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)
    return [_cleaned, render]


def _json() -> list[Processor]:
    return [_event_first, structlog.processors.JSONRenderer()]


def _masked(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return {
        name: masked_address(value) if isinstance(value, str) else value
        for name, value in event.items()
    }


def _cleaned(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Nothing from outside steers the terminal, and only a traceback takes more than its line."""
    for name, value in event.items():
        if isinstance(value, str):
            text = clean(value)
            event[name] = text if name == "exception" else text.replace("\n", REPLACEMENT)
    return event


def _event_first(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """When, how bad and what come first, so that raw lines can be read as well."""
    return {**{key: event.pop(key) for key in ("timestamp", "level", "event")}, **event}
