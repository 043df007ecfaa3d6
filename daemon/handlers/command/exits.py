"""Describes how a process ended, from the return code of `subprocess`."""

import signal


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def shell_status(code: int) -> int:
    """The status as a shell shows it (137 for SIGKILL), for use in retry rules."""
    return code if code >= 0 else 128 - code
