"""A run of tests that is told to stop (by `timeout`, by a CI job that is cancelled) ends as with
Ctrl+C: fixtures are torn down, and no daemon is left behind. No property depends on how long an
example takes: machines are shared."""

import signal

from hypothesis import settings


def pytest_configure() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings.register_profile("forebay", deadline=None)
    settings.load_profile("forebay")
