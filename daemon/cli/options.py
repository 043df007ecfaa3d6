"""The options of `run` and `config` that say where settings come from."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from daemon.config.load import Loaded

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration file. \\[env: FOREBAY_CONFIG]"),
]
Socket = Annotated[
    str | None,
    typer.Option("--socket", metavar="PATH", help="Socket to listen on. \\[env: FOREBAY_SOCKET]"),
]
StateDir = Annotated[
    str | None,
    typer.Option(
        "--state-dir", metavar="DIR", help="Directory of the spool. \\[env: FOREBAY_STATE_DIR]"
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http", metavar="ADDR", help="Address of the HTTP server. \\[env: FOREBAY_HTTP]"
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, e.g. [bold]spool.max_bytes=2Gi[/bold]; may be repeated. "
        "\\[env: FOREBAY_SPOOL__MAX_BYTES and so on]",
    ),
]


def load_settings(
    config: Path | None,
    socket: str | None,
    state_dir: str | None,
    http: str | None,
    sets: list[str] | None,
) -> "Loaded":
    from daemon.config.load import load_with_origins

    flags = {"socket": socket, "state_dir": state_dir, "http": http}
    return load_with_origins(config, os.environ, sets or (), flags)
