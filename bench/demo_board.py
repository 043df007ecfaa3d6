"""How far the demonstration is: bars on a terminal, a line a second elsewhere."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

LINE_S: Final = 1.0


class Board:
    def __init__(self, console: Console, totals: Mapping[str, int]) -> None:
        """`totals` are the items that will be pushed, by queue."""
        self._console = console
        self._totals = totals
        self._next_line = 0.0
        self._progress = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._pushed = self._progress.add_task("pushed", total=sum(totals.values()))
        self._delivered: dict[str, TaskID] = {
            queue: self._progress.add_task(f"delivered {queue}", total=total)
            for queue, total in totals.items()
        }

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def show(self, pushed: int, queues: Mapping[str, Mapping[str, Any]]) -> None:
        """`queues` are the daemon's books by queue."""
        delivered = {
            queue: int(queues[queue]["delivered"]) if queue in queues else 0
            for queue in self._totals
        }
        if self._console.is_terminal:
            self._progress.update(self._pushed, completed=pushed)
            for queue, task in self._delivered.items():
                self._progress.update(task, completed=delivered[queue])
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_S
            self.say(_line(pushed, list(delivered.items())))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


def _line(pushed: int, delivered: Sequence[tuple[str, int]]) -> str:
    parts = ", ".join(f"{queue} {items:,}" for queue, items in delivered)
    return f"pushed {pushed:,}; delivered: {parts}"
