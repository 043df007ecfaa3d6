"""The daemon's log on stderr: one line per event that an operator would act on.

Lines are readable text on a terminal and JSON objects otherwise (`log.format`). An event is a
constant such as `spooler.chunk_sealed`, its values are fields, and times are UTC. Passwords and
tokens in addresses are masked, and so are all secrets whose value is known, even where an error or
a traceback quotes one.

Writing a log line never fails: if stderr is on a full disk or a closed pipe, the line is lost. The
daemon continues, because it has to drain that very disk.
"""

import sys
import threading
from typing import IO, Any, Final

import structlog
from structlog.typing import EventDict, Processor

from actors.config.settings import LogSettings
from actors.model.masking import masked_address
from actors.model.secret_values import SECRET_VALUES
from daemon.process.terminal import REPLACEMENT, clean, unguarded

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Sink:
    """Writes whole lines; threads may share it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        line = SECRET_VALUES.masked(line)
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                # ValueError: the stream was closed. There is no other place to log to.
                pass

    debug = info = warning = error = critical = exception = msg


def set_up(settings: LogSettings, stream: IO[str] | None = None) -> None:
    """Configures the whole process, including earlier loggers that have not logged yet."""
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
    """Removes terminal control characters; only a traceback keeps its line breaks."""
    for name, value in event.items():
        if isinstance(value, str):
            text = clean(value)
            event[name] = text if name == "exception" else text.replace("\n", REPLACEMENT)
    return event


def _event_first(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Puts time, level and event first, so that raw lines are readable."""
    return {**{key: event.pop(key) for key in ("timestamp", "level", "event")}, **event}
