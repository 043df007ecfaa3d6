"""`forebay config`: checks and prints the configuration."""

import json
from typing import Annotated, Any, Literal

import typer

from daemon.cli.options import ConfigFile, Http, Sets, Socket, StateDir, load_settings
from daemon.errors import ConfigError
from daemon.process.terminal import json_text

app = typer.Typer(
    no_args_is_help=True,
    help="Check and show the configuration.",
    epilog="Both read the file, the environment and the flags as [bold]forebay run[/bold] does, "
    "and need no daemon.",
)


@app.command(epilog="Example: [bold]forebay config check --config forebay.yaml[/bold]")
def check(
    config: ConfigFile = None,
    socket: Socket = None,
    state_dir: StateDir = None,
    http: Http = None,
    sets: Sets = None,
) -> None:
    """Check the configuration: one line per problem, and exit code 3 if there is any.

    Checks also that the modules, programs, certificates, secrets and token files exist that the
    configuration names. Starts, binds and imports nothing, and connects to no server. Run it as
    the daemon's user, who may read these files. Warns about destinations that need a preset
    (forebay presets ls).
    """
    from daemon.config.checks import find_problems, find_warnings
    from daemon.process import logs

    settings = load_settings(config, socket, state_dir, http, sets).settings
    logs.set_up(settings.log)
    problems = list(find_problems(settings))
    if problems:
        raise ConfigError(*problems)
    for warning in find_warnings(settings):
        typer.echo(f"warning: {warning}", err=True)
    names = ", ".join(settings.queues) or "none by name"
    typer.echo(f"the configuration is good; queues: {names}")


@app.command(
    epilog="Examples: [bold]forebay config show > forebay.yaml[/bold] writes a file to start from; "
    "[bold]forebay config show --origins[/bold] shows where each value comes from."
)
def show(
    config: ConfigFile = None,
    socket: Socket = None,
    state_dir: StateDir = None,
    http: Http = None,
    sets: Sets = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: sizes in bytes, durations in seconds.")
    ] = False,
    origins: Annotated[
        bool, typer.Option("--origins", help="Print one setting per line with its origin.")
    ] = False,
    secrets: Annotated[
        bool, typer.Option("--secrets", help="Print passwords and tokens instead of ***.")
    ] = False,
) -> None:
    """Print the settings in force, as YAML that can be used as a configuration file.

    Passwords and tokens are shown as ***, unless --secrets is given.
    """
    loaded = load_settings(config, socket, state_dir, http, sets)
    mode: Literal["python", "json"] = "python" if as_json else "json"
    settings = loaded.settings
    tree = settings.model_dump(mode=mode) if secrets else settings.shown(mode)
    if origins:
        rows = {
            path: {"value": value, "origin": loaded.origin(path)} for path, value in leaves(tree)
        }
        if as_json:
            typer.echo(to_json({".".join(path): row for path, row in rows.items()}))
            return
        for path, row in rows.items():
            typer.echo(f"{'.'.join(path)} = {json.dumps(row['value'])}  # {row['origin']}")
    elif as_json:
        typer.echo(to_json(tree))
    else:
        import yaml

        typer.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), nl=False)


def leaves(
    tree: dict[str, Any], parents: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Any]]:
    """Every setting that holds a value; an empty mapping counts as a value."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        path = (*parents, key)
        found += leaves(value, path) if isinstance(value, dict) and value else [(path, value)]
    return found


def to_json(tree: dict[str, Any]) -> str:
    return json_text(tree, indent=2, default=str)
