"""Whose fault a failed attempt was: the application's, or the item's own.

`application`: the destination was not there, not able, or broken; trying again may help. It is what
counts where nobody says otherwise. `business`: whoever had the item looked at it and found that
what it asks for cannot be done; trying again will not help, unless whoever says so asks for it.
"""

from typing import Final, Literal, get_args

FailureReason = Literal["application", "business"]
FAILURE_REASONS: Final[tuple[FailureReason, ...]] = get_args(FailureReason)


def check_reason(reason: str) -> None:
    """ValueError if it is none of the reasons."""
    if reason not in FAILURE_REASONS:
        raise ValueError(f"a reason is one of {', '.join(FAILURE_REASONS)}, not {reason!r}")


def read_failure_reason(said: object) -> FailureReason | None:
    """What somebody says, in upper or lower case; None if that is none of the reasons."""
    word = said.lower() if isinstance(said, str) else ""
    return next((reason for reason in FAILURE_REASONS if reason == word), None)
