"""Settings of every test run: signals, Hypothesis, and how pytest-xdist shares out the tests.

A run that is told to stop (by `timeout`, by a CI job that is cancelled) ends as with Ctrl+C:
fixtures are torn down, and no daemon is left behind. No property depends on how long an example
takes: machines are shared.
"""

import signal

import pytest
from hypothesis import settings

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
