"""`forebay run`: the daemon, in the foreground."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.options import ConfigFile, Http, Sets, Socket, StateDir, load_settings

if TYPE_CHECKING:
    from actors.config.settings import Settings

WarmType = Annotated[
    str | None,
    typer.Option(
        "--warm",
        metavar="TYPE",
        help="memory, or valkey at warm.url. \\[env: FOREBAY_WARM__TYPE, FOREBAY_WARM__URL]",
    ),
]
ColdType = Annotated[
    str | None,
    typer.Option(
        "--cold",
        metavar="TYPE",
        help="sqlite, or postgres at cold.url. \\[env: FOREBAY_COLD__TYPE, FOREBAY_COLD__URL]",
    ),
]
WaitForStores = Annotated[
    bool,
    typer.Option(
        "--wait-for-stores",
        help="Wait for Valkey and PostgreSQL where they do not answer yet, as after a boot.",
    ),
]
EXAMPLE: Final = (
    "Examples: [bold]forebay run[/bold], with a state of your own under your home; "
    "[bold]forebay run --state-dir ./state --socket ./forebay.sock[/bold]; "
    "[bold]forebay run --config forebay.yaml --set spool.max_bytes=8Gi[/bold]. "
    "[bold]forebay config show[/bold] prints what would be in force."
)


def run(
    config: ConfigFile = None,
    socket: Socket = None,
    state_dir: StateDir = None,
    http: Http = None,
    warm: WarmType = None,
    cold: ColdType = None,
    wait_for_stores: WaitForStores = False,
    sets: Sets = None,
) -> None:
    """Run the daemon in the foreground.

    Flags beat the environment, the environment beats the file. SIGTERM and Ctrl-C drain; SIGHUP
    reads the configuration again.

    Without more it needs no server. A fleet shares two, named by warm.url and cold.url.
    """
    chosen = [f"{name}.type={kind}" for name, kind in (("warm", warm), ("cold", cold)) if kind]

    def load() -> "Settings":
        return load_settings(config, socket, state_dir, http, [*(sets or ()), *chosen]).settings

    settings = load()

    from daemon import app
    from daemon.process import logs

    logs.set_up(settings.log)
    raise typer.Exit(app.main(settings, load, wait_for_stores=wait_for_stores))
