"""Whose fault a failed attempt was: the application's, or the item's own.

`application` (the default): the destination was unreachable, unable, or broken; a retry may help.
`business`: the worker or consumer found that what the item asks for cannot be done; the item is not
retried, unless the report asks for it.
"""

from typing import Final, Literal, get_args

FailureReason = Literal["application", "business"]
FAILURE_REASONS: Final[tuple[FailureReason, ...]] = get_args(FailureReason)


def check_reason(reason: str) -> None:
    """Raises ValueError if it is not one of the reasons."""
    if reason not in FAILURE_REASONS:
        raise ValueError(f"a reason is one of {', '.join(FAILURE_REASONS)}, not {reason!r}")


def read_failure_reason(said: object) -> FailureReason | None:
    """The reason in a report, in upper or lower case; None if it is not one of the reasons."""
    word = said.lower() if isinstance(said, str) else ""
    return next((reason for reason in FAILURE_REASONS if reason == word), None)
