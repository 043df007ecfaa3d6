"""`forebay presets`: lists and prints the presets of http handlers. Needs no daemon."""

from pathlib import Path
from typing import Annotated

import typer

from daemon.cli.client import Json, print_json, print_table
from daemon.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    help="Presets: settings of http handlers for known APIs.",
    epilog="A queue uses one with [bold]handler: {preset: NAME, url: …}[/bold]; keys of its own "
    "override those of the preset. See docs/handlers.md.",
)

Directory = Annotated[
    Path | None,
    typer.Option(
        "--presets-dir",
        metavar="DIR",
        envvar="FOREBAY_PRESETS_DIR",
        show_envvar=False,
        help="Your own presets, as presets_dir. \\[env: FOREBAY_PRESETS_DIR]",
    ),
]


@app.command(epilog="Example: [bold]forebay presets ls[/bold]")
def ls(directory: Directory = None, as_json: Json = False) -> None:
    """List the presets: name, the API, and the limits that its vendor documents."""
    from actors.config.presets import all_presets

    try:
        found = dict(all_presets(directory))
    except ValueError as problem:
        raise ConfigError(str(problem)) from problem
    if as_json:
        for name, preset in found.items():
            print_json({"name": name} | preset.model_dump())
        return

    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("summary")
    table.add_column("limits")
    for name, preset in found.items():
        table.add_row(escape(name), escape(preset.summary), escape(preset.limits))
    print_table(table)


@app.command(
    epilog="Example: [bold]forebay presets show salesforce-collections[/bold]; its output, as a "
    "file NAME.yaml in presets_dir, is a preset of your own to start from."
)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset of forebay presets ls.")],
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Print a preset as YAML, with an example of its use."""
    from actors.config.presets import find_preset, preset_file

    try:
        preset = find_preset(name, directory)
        text = preset_file(name, directory).read_text()
    except (ValueError, OSError) as problem:
        raise typer.BadParameter(str(problem)) from problem
    if as_json:
        print_json({"name": name} | preset.model_dump())
    else:
        typer.echo(text, nl=False)
