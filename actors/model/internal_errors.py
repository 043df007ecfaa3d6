"""Unexpected exceptions of single requests: logged once, counted, and answered.

A request may meet a bug. That must end neither the daemon nor the connection. The code that carries
out a request catches `Exception` around it, and `note` turns what was caught into the answer. The
answer names a short reference; the log line with the traceback names the same one. Cancellation is
not an `Exception` and passes.

Only work for a single client is treated like this. A bug in an actor's own loop still ends the
process: the state it has left behind is unknown.
"""

import secrets
from typing import Final

import structlog

from forebay.errors import Refused

log = structlog.get_logger()

REFERENCE_BYTES: Final = 4


class InternalErrors:
    def __init__(self) -> None:
        self.total = 0
        """Since the start."""

    def note(
        self, problem: BaseException, during: str, *, fatal: bool = False, **about: object
    ) -> Refused:
        """The answer to the request. `during` names the operation, `about` the client. `fatal`: the
        connection ends with it."""
        self.total += 1
        reference = secrets.token_hex(REFERENCE_BYTES)
        log.error(
            "daemon.internal_error", reference=reference, during=during, **about, exc_info=problem
        )
        text = f"unexpected error in the daemon: its log has the details under {reference}"
        return Refused("INTERNAL", text, fatal=fatal)


INTERNAL_ERRORS: Final = InternalErrors()
"""The counter of this process."""
