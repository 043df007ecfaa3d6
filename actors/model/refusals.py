"""Refusals at the socket and the API, with their texts; the spooler has its own."""

from typing import Final

from actors.model.units import format_size
from forebay import wire
from forebay.errors import Refused
from forebay.ids import format_run_id

DRAINING_RETRY_MS: Final = 1000
BUSY_RETRY_MS: Final = 1000
UNAVAILABLE_RETRY_MS: Final = 1000


def draining(*, fatal: bool = False) -> Refused:
    return Refused(
        "DRAINING", "the daemon is shutting down", retry_after_ms=DRAINING_RETRY_MS, fatal=fatal
    )


def too_large(bytes_max: int) -> Refused:
    return Refused("TOO_LARGE", f"at most {format_size(bytes_max)} are allowed")


def unknown_queue(queue: str) -> Refused:
    return Refused(
        "UNKNOWN_QUEUE", f"there is no queue {queue}, and queues are not created on demand"
    )


def bad_request(text: str) -> Refused:
    return Refused("BAD_REQUEST", text)


def conflict(text: str) -> Refused:
    return Refused("CONFLICT", text)


def other_content(run_id: bytes) -> Refused:
    text = f"run {format_run_id(run_id)} was stored before with other content: use a new run id"
    return Refused("BAD_RUN", text)


def not_found(what: str) -> Refused:
    """`what`, for example: queue crm."""
    return Refused("NOT_FOUND", f"there is no {what}")


def spent_job(item_id: str) -> Refused:
    text = (
        f"{item_id} is the job of a trigger: its items were given back when it died, and are in "
        "other jobs by now, or will be. Delete it instead"
    )
    return conflict(text)


def lease_lost(leases: int) -> Refused:
    which = "the lease has" if leases == 1 else f"all {leases} leases have"
    return Refused("LEASE_LOST", f"{which} run out, been settled, or been given back")


def unavailable(problem: Exception) -> Refused:
    return Refused("UNAVAILABLE", str(problem), retry_after_ms=UNAVAILABLE_RETRY_MS)


def no_common_version(lowest: int, highest: int) -> Refused:
    return Refused(
        "VERSION",
        f"the daemon speaks versions {wire.PROTOCOL_MIN} to {wire.PROTOCOL_MAX}, "
        f"the client {lowest} to {highest}",
        fatal=True,
    )


def busy(max_connections: int) -> Refused:
    return Refused(
        "BUSY",
        f"all {max_connections} connections are taken",
        retry_after_ms=BUSY_RETRY_MS,
        fatal=True,
    )


def too_slow(what: str) -> Refused:
    return Refused("TIMEOUT", f"the client took too long {what}", fatal=True)
