"""How a process ended, in words and as a number. Codes are as subprocess gives them."""

import signal


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def shell_status(code: int) -> int:
    """The status as a shell shows it, where SIGKILL is 137, so that retry rules can name it."""
    return code if code >= 0 else 128 - code
