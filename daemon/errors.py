"""What keeps the daemon from starting, for the operator to act on."""


class CannotStart(Exception):
    """Something outside is in the way; the text says what, in a line."""


class ConfigError(CannotStart):
    """The configuration cannot be used, and trying again does not help: exit code 3, upon which
    systemd does not start the daemon again. One problem per line, each with its key."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
