"""A run of tests that is told to stop (by `timeout`, by a CI job that is cancelled) ends as with
Ctrl+C: fixtures are torn down, and no daemon is left behind."""

import signal


def pytest_configure() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
