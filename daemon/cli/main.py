"""The command line: every command, composed. Each lives in a module of its own."""

import sys
from typing import Annotated

import typer

from daemon.cli import config, dead, exits, queues, spool, streams, writes
from daemon.cli import history as finished
from daemon.cli import pause as pausing
from daemon.cli import pull as pulling
from daemon.cli import receipt as receipts
from daemon.cli.push import push
from daemon.cli.run import run
from daemon.cli.stats import stats

app = typer.Typer(
    name="forebay",
    help="A durable work queue in front of slow destinations.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 configuration, 4 no daemon, 5 refused, "
    "6 damage found, 70 a bug, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(push)
app.command(epilog=pulling.EXAMPLE)(pulling.pull)
app.command()(stats)
app.command(epilog=receipts.EXAMPLE)(receipts.receipt)
app.command(epilog=finished.EXAMPLE)(finished.history)
app.command(epilog=pausing.PAUSE_EXAMPLE)(pausing.pause)
app.command(epilog=pausing.RESUME_EXAMPLE)(pausing.resume)
app.add_typer(queues.app, name="queues")
app.add_typer(dead.app, name="dead")
app.add_typer(writes.app, name="writes")
app.add_typer(streams.app, name="streams")
app.add_typer(spool.app, name="spool")
app.add_typer(config.app, name="config")


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
    try:
        code = app(prog_name="forebay", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        exits.leave(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
