"""Settings of every test run: signals, deadlines, Hypothesis, and how pytest-xdist groups tests.

A run that is told to stop (by `timeout`, by a CI job that is cancelled) ends as with Ctrl+C:
fixtures are torn down, and no daemon is left behind. No property depends on how long an example
takes: machines are shared.

A test that hangs fails after HANG_S. The deadline counts real time, so it also ends a test on a
mock clock that waits for something that never happens. It does not measure speed: no test comes
near it, even on a machine that is many times overloaded.
"""

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Final

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

HANG_S: Final = float(os.environ.get("FOREBAY_TEST_HANG_S", "600"))
"""Of the setup, the call and the teardown of a test, each."""

LONGEST = {
    "spark": ("tests/spark/",),
    "crash": ("tests/crash/",),
    "browser": ("tests/browser/",),
}
"""Each of these is one group: one Spark session, one zygote, one browser. They start first,
because the run cannot end before the longest of them does."""


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings.register_profile("forebay", deadline=None)
    settings.load_profile("forebay")
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(FailuresAtOnce(config))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        help="run the files, and the tests of each file, in an order that this text determines",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--shuffle")) is not None:
        _shuffle(items, seed)
    place = {group: number for number, group in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(_group(item.nodeid), len(place)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> "Groups":
    return Groups(config, log)


class Groups(LoadScopeScheduling):
    """Tests of one group run in one process and share its fixtures.

    `--dist loadgroup` is made for that, but pytest-xdist 3.8 names groups in a way that pytest 9.2
    ignores: every test became a group of its own.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((name for name, starts in LONGEST.items() if file.startswith(starts)), file)


def _shuffle(items: list[pytest.Item], seed: str) -> None:
    """The same order in every process, with the tests of a file still side by side, and those that
    sum up the others last."""
    places = list(items)
    Random(seed).shuffle(places)
    place = {item: number for number, item in enumerate(places)}
    file_place = {item.path: number for number, item in enumerate(places)}
    is_last = {item: item.get_closest_marker("sums_up") is not None for item in items}
    items.sort(key=lambda item: (file_place[item.path], is_last[item], place[item]))


class FailuresAtOnce:
    """Shows each failure when it happens; pytest-xdist alone shows them when the run ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.section(f"{report.nodeid} ({report.when})", "-")
            terminal.write_line(report.longreprtext)


@contextmanager
def _hang_is_a_failure(item: pytest.Item) -> Iterator[None]:
    """Interrupts the test as Ctrl+C would, so that trio unwinds, and then fails this test alone.

    A SparkContext replaces the handler of Ctrl+C for the whole process, and trio then keeps out of
    the way: the interrupt would break trio's loop, and with it every test that follows.
    """
    is_late = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_late
        is_late = True
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    except BaseException as end:
        if is_late:
            raise AssertionError(f"{item.nodeid} hangs: not over within {HANG_S:g} s") from end
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _hang_is_a_failure(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _hang_is_a_failure(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _hang_is_a_failure(item):
        return (yield)
