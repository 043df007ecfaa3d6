"""Errors that prevent the daemon from starting, for the operator to act on."""


class CannotStart(Exception):
    """The daemon cannot start; the text says why, in one line."""


class ConfigError(CannotStart):
    """The configuration cannot be used, and a retry does not help: exit code 3, after which systemd
    does not restart the daemon. One problem per line, each with its key."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
