"""The progress of a pipeline, for people who wait: one line per step, with the time so far.

While Spark works, a thread counts the finished tasks every few seconds. Spark Connect has no such
counts on the client: there a step is one line.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 5.0

Say = Callable[[str], None]


def say_nothing(text: str) -> None:
    """For callers that show progress themselves."""


class Progress:
    """Lines on stderr: the seconds since the start, and the current step."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._began:6.1f} s] {text}\n")
        sys.stderr.flush()


@contextmanager
def tasks_shown(spark: "SparkSession", what: str, say: Say) -> Iterator[None]:
    """Says `what`, and how many of its tasks are done if it takes long."""
    say(what)
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, what, say, is_over), daemon=True)
    if say is not say_nothing:
        watcher.start()
    try:
        yield
    finally:
        is_over.set()
        if watcher.is_alive():
            watcher.join()


def _watch(spark: "SparkSession", what: str, say: Say, is_over: threading.Event) -> None:
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:
        return
    while not is_over.wait(LOOK_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        tasks = sum(stage.numTasks for stage in known)
        if tasks:
            done = sum(stage.numCompletedTasks for stage in known)
            say(f"{what}: {done} of {tasks} tasks ({done / tasks:.0%})")
