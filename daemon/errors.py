"""What keeps the daemon from starting, for the operator to act on."""


class CannotStart(Exception):
    """Something outside is in the way; the text says what, in a line."""


class ConfigError(Exception):
    """The configuration cannot be used. One problem a line, each with where it was written."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
