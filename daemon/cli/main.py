"""Puts the command line together. Each command has its own module."""

import inspect
import sys
from typing import Annotated, Final

import typer

from daemon.cli import (
    config,
    cron,
    exits,
    operations,
    presets,
    spool,
    trial,
    triggers,
    writes,
)
from daemon.cli import history as finished
from daemon.cli import pull as pulling
from daemon.cli import receipt as receipts
from daemon.cli.dead import commands as dead
from daemon.cli.items import commands as single
from daemon.cli.push import EXAMPLE as PUSH_EXAMPLE
from daemon.cli.push import push
from daemon.cli.run import EXAMPLE as RUN_EXAMPLE
from daemon.cli.run import run
from daemon.cli.stats.commands import EXAMPLE as STATS_EXAMPLE
from daemon.cli.stats.commands import stats
from daemon.cli.top.commands import EXAMPLE as TOP_EXAMPLE
from daemon.cli.top.commands import top
from daemon.process.terminal import guard

ITEMS: Final = "Items"
WATCHING: Final = "Watching"
ACTING: Final = "Acting"
SPARK: Final = "Spark writes and streams"
DAEMON: Final = "The daemon"


def unwrap_all(app: typer.Typer) -> None:
    """Removes the line breaks of the source from the help of every command.

    Typer keeps the breaks of all paragraphs but the first, and a terminal that is narrower than the
    source then breaks every line twice.
    """
    for command in app.registered_commands:
        if command.callback is not None and command.help is None:
            command.help = unwrap(command.callback.__doc__ or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            unwrap_all(group.typer_instance)


def unwrap(text: str) -> str:
    """One line per paragraph."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


app = typer.Typer(
    name="forebay",
    help="A durable work queue in front of slow destinations.",
    epilog="A first look, with a daemon running: [bold]seq 1000 | forebay push hello[/bold], then "
    "[bold]forebay top[/bold], then [bold]forebay pull hello -n 3[/bold]. Every command has "
    "[bold]--help[/bold]. Exit codes: 0 done, 1 failed, 2 usage, 3 configuration, "
    "4 no daemon, 5 refused, 6 damage found, 70 a bug, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(rich_help_panel=DAEMON, epilog=RUN_EXAMPLE)(run)
app.command(rich_help_panel=ITEMS, epilog=PUSH_EXAMPLE)(push)
app.command(rich_help_panel=ITEMS, epilog=pulling.EXAMPLE)(pulling.pull)
app.command("try", rich_help_panel=ITEMS, epilog=trial.EXAMPLE)(trial.try_out)
app.command(rich_help_panel=WATCHING, epilog=STATS_EXAMPLE)(stats)
app.command(rich_help_panel=WATCHING, epilog=TOP_EXAMPLE)(top)
app.command(rich_help_panel=ITEMS, epilog=receipts.EXAMPLE)(receipts.receipt)
app.command(rich_help_panel=ITEMS, epilog=finished.EXAMPLE)(finished.history)
app.add_typer(single.app, name="items", rich_help_panel=ITEMS)
app.add_typer(operations.group("queues"), name="queues", rich_help_panel=ACTING)
app.add_typer(dead.app, name="dead", rich_help_panel=ACTING)
app.add_typer(operations.group("keys"), name="keys", rich_help_panel=ACTING)
app.add_typer(operations.group("breakers"), name="breakers", rich_help_panel=ACTING)
app.add_typer(cron.app, name="cron", rich_help_panel=ACTING)
app.add_typer(triggers.app, name="triggers", rich_help_panel=ACTING)
app.add_typer(writes.app, name="writes", rich_help_panel=SPARK)
app.add_typer(operations.group("streams"), name="streams", rich_help_panel=SPARK)
app.add_typer(spool.app, name="spool", rich_help_panel=DAEMON)
app.add_typer(operations.group("fleet"), name="fleet", rich_help_panel=DAEMON)
app.add_typer(config.app, name="config", rich_help_panel=DAEMON)
app.add_typer(presets.app, name="presets", rich_help_panel=DAEMON)
unwrap_all(app)


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"forebay {version('forebayd')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    guard()
    try:
        code = app(prog_name="forebay", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        exits.leave(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
