"""A Chromium for all tests here, and a page that is watched: whatever a test looks at, the page
must ask nobody but its own daemon, break no rule of its security policy, and log no error.

Playwright's blocking API is used in plain tests. Its event loop belongs to this package alone: it
ends before tests elsewhere run loops of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from bench.chromium import FLAGS, find
from tests.browser.seeing import Watch
from tests.browser.world import SCHEDULES, World

# A context for each test needs no processes of its own: half as many are started.
FEW_PROCESSES = "--renderer-process-limit=1"
# A page that should have changed and hasn't: nothing is measured by it.
HANG_MS = 60_000


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    path = find()
    if path is None:
        pytest.skip("there is no Chromium here: python -m bench.chromium --install")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*FLAGS, FEW_PROCESSES])
        yield browser
        browser.close()


@pytest.fixture
def watched(chromium: Browser) -> Iterator[Watch]:
    """Opens pages, and says at the end what was wrong with any of them."""
    watch = Watch(chromium, HANG_MS)
    yield watch
    watch.close()
    assert watch.wrongs == []


@pytest.fixture
def page(watched: Watch) -> Page:
    return watched.page()


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon for all tests that only look, or leave things as they were."""
    directory = Path(os.path.realpath(tmp_path_factory.mktemp("world")))
    with World(directory).running() as world:
        yield world


@pytest.fixture
def own_world(tmp_path: Path) -> Iterator[World]:
    """A daemon for one test that changes things."""
    with World(tmp_path).running() as world:
        yield world


@pytest.fixture(scope="package")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon with many schedules and nothing to do."""
    directory = Path(os.path.realpath(tmp_path_factory.mktemp("scheduled")))
    with World(directory, more={"schedules": SCHEDULES}).started() as world:
        yield world
