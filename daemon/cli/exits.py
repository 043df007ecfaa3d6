"""Exit codes. A command that fails prints one clear line, never a traceback.

| code | meaning |
|---|---|
| 0 | done |
| 1 | failed: a file cannot be read, a run is not valid, the disk is full |
| 2 | the command line is wrong |
| 3 | the configuration is wrong, or names a module, program, file or address that is unusable |
| 4 | no daemon answers, or the named object does not exist |
| 5 | the daemon refused |
| 6 | damage was found in a spool |
| 70 | a bug in forebay; `FOREBAY_TRACEBACK=1` shows where |
| 130 | interrupted |
"""

import os
import sys
from enum import IntEnum
from typing import NoReturn

from typer.exceptions import Abort, TyperException

from daemon.errors import CannotStart, ConfigError
from forebay.errors import ForebayError, Refused, Unreachable


class Exit(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    CONFIG = 3
    NOT_THERE = 4
    REFUSED = 5
    DAMAGE = 6
    BUG = 70
    INTERRUPTED = 130


def leave(error: BaseException) -> NoReturn:
    """Prints the error on stderr and exits with its code."""
    lines, code = explain(error)
    if code is Exit.BUG and os.environ.get("FOREBAY_TRACEBACK"):
        raise error
    for line in lines:
        sys.stderr.write(f"forebay: {line}\n")
    if isinstance(error, BrokenPipeError):
        # Python flushes stdout once more at exit and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def explain(error: BaseException) -> tuple[tuple[str, ...], Exit]:
    """The lines to print, and the exit code. Of a trio exception group, the first error counts."""
    match error:
        case BaseExceptionGroup():
            return explain(error.exceptions[0])
        case TyperException():
            return _usage(error), Exit.USAGE
        case Abort():
            return ("cancelled",), Exit.FAILURE
        case ConfigError():
            return error.problems, Exit.CONFIG
        case Unreachable():
            return (str(error),), Exit.NOT_THERE
        case Refused(code="NOT_FOUND" | "UNKNOWN_QUEUE"):
            return (str(error),), Exit.NOT_THERE
        case Refused():
            return (str(error),), Exit.REFUSED
        case ForebayError() | CannotStart():
            return (str(error),), Exit.FAILURE
        case KeyboardInterrupt():
            return (), Exit.INTERRUPTED
        case BrokenPipeError():
            return (), Exit.FAILURE
        case OSError():
            about = f"{error.filename}: " if error.filename else ""
            return (f"{about}{error.strerror or error}",), Exit.FAILURE
        case _:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            hint = "please report this; FOREBAY_TRACEBACK=1 shows where it happened"
            return (f"internal error: {what} ({hint})",), Exit.BUG


def _usage(error: TyperException) -> tuple[str, ...]:
    """Empty if no command was given: typer has printed the help already."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if not message or context is None:
        return (message,) if message else ()
    return (f"{message.rstrip('.')} (see {context.command_path} --help)",)
