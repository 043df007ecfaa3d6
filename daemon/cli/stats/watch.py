"""`forebay stats --watch`: repeats the report, in place on a terminal, as lines elsewhere.

Ends with Ctrl-C, or after --count reports. If the daemon stops answering, says so once and waits.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import typer

from daemon.cli.client import counted, open_console, print_json
from daemon.cli.stats.sampling import Asker, Rates, Recent, Sample
from daemon.cli.stats.view import stats_lines, stats_objects, stats_table
from daemon.process.terminal import clean

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forebay.errors import ForebayError

Show = Callable[[Sample, dict[str, Rates], "ForebayError | None"], None]
"""Shows a sample. With an error, the daemon is unavailable and the sample is the last one."""


def watch(asker: Asker, every_s: float, reports: int | None, *, as_json: bool) -> None:
    """Raises if the first sample fails."""
    from forebay.errors import ForebayError

    recent = Recent(window_s=every_s)
    sample = asker.report()
    show_all = _show_lines(as_json) if as_json or not sys.stdout.isatty() else _show_in_place(asker)
    with show_all as show:
        for number in count(1):
            recent.add(sample)
            show(sample, recent.rates(), None)
            if number == reports:
                return
            while True:
                time.sleep(every_s)
                try:
                    sample = asker.report()
                    break
                except ForebayError as problem:
                    show(sample, {}, problem)


@contextmanager
def _show_lines(as_json: bool) -> Iterator[Show]:
    is_away = False

    def show(sample: Sample, rates: dict[str, Rates], problem: "ForebayError | None") -> None:
        nonlocal is_away
        if problem is not None:
            if not is_away:
                typer.echo(f"forebay: {problem}; waiting for it", err=True)
            is_away = True
            return
        is_away = False
        if as_json:
            for row in stats_objects(sample, rates):
                print_json(row)
        else:
            for line in stats_lines(sample, rates):
                typer.echo(line)
        sys.stdout.flush()

    yield show


@contextmanager
def _show_in_place(asker: Asker) -> Iterator[Show]:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=open_console(), auto_refresh=False) as live:

        def show(sample: Sample, rates: dict[str, Rates], problem: "ForebayError | None") -> None:
            table = stats_table(sample.report, rates)
            clock = time.strftime("%H:%M:%S", time.localtime(sample.at_ms / 1000))
            state = Text(f"{asker.path}  {clock}", style="dim")
            if problem is not None:
                gone = counted(round(time.monotonic() - sample.at_s), "second")
                why = clean(str(problem))
                state = Text(f"{why}; these figures are {gone} old", style="bold red")
                table.style = "dim"
            shown: RenderableType = Group(table, "", state)
            live.update(shown, refresh=True)

        yield show
