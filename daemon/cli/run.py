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
        help="Wait for Valkey and PostgreSQL if they do not answer yet, as after a boot.",
    ),
]
EXAMPLE: Final = (
    "Examples: [bold]forebay run[/bold], with its state in your home directory; "
    "[bold]forebay run --state-dir ./state --socket ./forebay.sock[/bold]; "
    "[bold]forebay run --config forebay.yaml --set spool.max_bytes=8Gi[/bold]. "
    "[bold]forebay config show[/bold] prints the resulting settings."
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

    Flags override the environment, and the environment overrides the file. SIGTERM and Ctrl-C
    drain and stop; SIGHUP reloads the configuration.

    By default it needs no server. A fleet shares two: warm.url and cold.url.
    """
    chosen = [f"{name}.type={kind}" for name, kind in (("warm", warm), ("cold", cold)) if kind]

    def load() -> "Settings":
        return load_settings(config, socket, state_dir, http, [*(sets or ()), *chosen]).settings

    settings = load()

    from daemon import app
    from daemon.process import logs

    logs.set_up(settings.log)
    raise typer.Exit(app.main(settings, load, wait_for_stores=wait_for_stores))
