"""What asyncpg raises, as forebay's own words: try again, unavailable, or corrupt."""

import ssl
from typing import Final

import asyncpg

from actors.ports.tiers import StoreCorrupt, StoreUnavailable

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # The driver's own confusion, when a session was terminated between two statements.
    asyncpg.InternalClientError,
    OSError,
)

UNDONE: Final = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "55P03",  # lock_not_available
        "23503",  # a body went while a row came that needs it (foreign_key_violation)
    }
)
"""The server undid the step, and it will probably succeed if it is taken again."""
LOST: Final = frozenset(
    {
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "53300",  # too_many_connections
    }
)
"""The connection is gone, or there is none. Class 08 as well."""
READ_ONLY: Final = "25006"
"""Another server may take writes meanwhile, and be found by a new connection."""
CORRUPT: Final = frozenset({"XX001", "XX002"})


class Again(Exception):
    """The step may be taken again."""

    def __init__(self, text: str, *, is_lost: bool, is_unknown: bool) -> None:
        super().__init__(text)
        self.text = text
        self.is_lost = is_lost
        """The connection, or there was none to be had."""
        self.is_unknown = is_unknown
        """Nobody knows whether it was committed."""


def is_sound_after(error: BaseException) -> bool:
    """Whether the connection can be used after a ROLLBACK."""
    is_servers = isinstance(error, asyncpg.PostgresError)
    return is_servers and not _is_lost(error) and _state(error) != READ_ONLY


def translated(
    error: BaseException, *, is_committing: bool
) -> Again | StoreUnavailable | StoreCorrupt | ValueError:
    text = f"PostgreSQL: {str(error) or type(error).__name__}"
    if isinstance(error, asyncpg.DataError):
        # The value was ours.
        return ValueError(text)
    state = _state(error)
    if state in CORRUPT:
        return StoreCorrupt(text)
    if state in UNDONE:
        return Again(text, is_lost=False, is_unknown=False)
    if _is_lost(error):
        return Again(text, is_lost=True, is_unknown=is_committing)
    return StoreUnavailable(text)


def _is_lost(error: BaseException) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        state = _state(error)
        return state in LOST or state.startswith("08")
    # A certificate that is not trusted will not be a moment later.
    return not isinstance(error, asyncpg.ClientConfigurationError | ssl.SSLCertVerificationError)


def _state(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")
