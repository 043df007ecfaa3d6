"""The event log's files: what actors/observers/event_log.py collects, on disk."""

import os
import socket
from pathlib import Path

from actors.config.observers import EventSettings
from actors.observers.event_log import EventSink
from daemon.errors import ConfigError
from daemon.events.files import EventFiles, Format
from daemon.events.lines import LineFormat


def open_sink(settings: EventSettings, state_dir: Path) -> EventSink | None:
    """None: no events are wanted. Does no I/O; ConfigError if Parquet is wanted and not there."""
    if settings.mode == "off":
        return None
    host = socket.gethostname()
    everywhere: dict[str, str | int | float] = {"host": host, "pid": os.getpid()}
    everywhere["sample"] = settings.share
    directory = settings.directory or state_dir / "events"
    return EventFiles(directory, host, _format(settings, everywhere), settings)


def _format(settings: EventSettings, everywhere: dict[str, str | int | float]) -> Format:
    if settings.format == "ndjson":
        return LineFormat(everywhere)
    from daemon.events.parquet import ParquetFormat

    try:
        return ParquetFormat(everywhere)
    except ImportError as error:
        raise ConfigError(
            f"events.format: parquet needs pyarrow (pip install pyarrow): {error}"
        ) from error
