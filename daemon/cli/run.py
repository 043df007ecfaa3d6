"""`forebay run`: the daemon, in the foreground."""

from typing import TYPE_CHECKING

import typer

from daemon.cli.options import ConfigFile, Http, Sets, Socket, StateDir, load_settings

if TYPE_CHECKING:
    from actors.settings import Settings


def run(
    config: ConfigFile = None,
    socket: Socket = None,
    state_dir: StateDir = None,
    http: Http = None,
    sets: Sets = None,
) -> None:
    """Run the daemon in the foreground.

    Flags beat the environment, the environment beats the file. SIGTERM and Ctrl-C drain; SIGHUP
    reads the configuration again.
    """

    def load() -> "Settings":
        return load_settings(config, socket, state_dir, http, sets).settings

    settings = load()

    from daemon import app, logs

    logs.set_up(settings.log)
    raise typer.Exit(app.main(settings, load))
