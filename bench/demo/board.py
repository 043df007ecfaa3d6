"""How far the demonstration is: bars on a terminal; elsewhere a line when something has changed,
at most one every two seconds."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_S: Final = 2.0


class Board:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line = 0.0
        self._last_line = ""
        self._progress = Progress(
            TextColumn("{task.description:<32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars = {
            name: self._progress.add_task(name, total=None)
            for name in ("accepted", "delivered or dead", "accepted from foreachPartition")
        }

    def say(self, text: str) -> None:
        self._progress.console.print(text, soft_wrap=True)

    def show(self, phase: str, rows: int | None, stats: Mapping[str, Any]) -> None:
        """`rows` are those to be pushed, once that is known; `stats` the daemon's."""
        crm, plain = (stats["queues"].get(queue, {}) for queue in ("crm", "plain"))
        breaker = "".join(entry["state"] for entry in stats["breakers"].values())
        counts = (
            crm.get("accepted", 0),
            crm.get("delivered", 0) + crm.get("dead", 0),
            plain.get("accepted", 0),
        )
        if self._console.is_terminal:
            for bar, count in zip(self._bars.values(), counts, strict=True):
                self._progress.update(bar, completed=count, total=rows)
            first = next(iter(self._bars.values()))
            self._progress.update(first, description=f"{phase}; breaker {breaker or 'closed'}")
        elif time.monotonic() >= self._next_line:
            accepted, over, plainly = counts
            line = (
                f"{phase}: accepted {accepted:,}, delivered or dead {over:,}, "
                f"breaker {breaker or 'closed'}; foreachPartition {plainly:,}"
            )
            if line != self._last_line:
                self._next_line, self._last_line = time.monotonic() + LINE_S, line
                self.say(line)

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
