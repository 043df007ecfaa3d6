"""Settings of every test run: signals, deadlines, Hypothesis, and how pytest-xdist groups tests.

A run that is told to stop (by `timeout`, by a CI job that is cancelled) ends as with Ctrl+C:
fixtures are torn down, and no daemon is left behind. No property depends on how long an example
takes: machines are shared.

A test that hangs fails after HANG_S. The deadline counts real time, so it also ends a test on a
mock clock that waits for something that never happens. It is no measure of speed: no test comes
near it, even on a machine that is many times overloaded.
"""

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import pytest
from hypothesis import settings

HANG_S: Final = float(os.environ.get("FOREBAY_TEST_HANG_S", "600"))
"""Of the setup, the call and the teardown of a test, each."""

LONGEST = ("tests/spark", "tests/crash", "tests/browser")
"""Each of these is one group: one JVM, one zygote, one browser. They start first, because the run
cannot end before the longest of them does."""


def pytest_configure() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings.register_profile("forebay", deadline=None)
    settings.load_profile("forebay")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one file run in one process and share its fixtures. First: xdist reads the marks."""
    groups = {item: _group(item, config) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    first = {group: place for place, group in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(groups[item], len(first)))


def _group(item: pytest.Item, config: pytest.Config) -> str:
    path = item.path.relative_to(config.rootpath).as_posix()
    return next((folder for folder in LONGEST if path.startswith(f"{folder}/")), path)


@contextmanager
def _hang_is_a_failure(item: pytest.Item) -> Iterator[None]:
    """Interrupts the test as Ctrl+C would, so that trio unwinds, and then fails this test alone."""
    is_late = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_late
        is_late = True
        signal.raise_signal(signal.SIGINT)

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
