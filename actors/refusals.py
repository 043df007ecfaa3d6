"""What ingest itself refuses, in words; what the spooler refuses comes from there."""

from typing import Final

from actors.peer import Peer
from actors.units import format_size
from forebay import wire
from forebay.errors import Refused

DRAINING_RETRY_MS: Final = 1000
BUSY_RETRY_MS: Final = 1000


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


def no_common_version(lowest: int, highest: int) -> Refused:
    return Refused(
        "VERSION",
        f"the daemon speaks versions {wire.PROTOCOL_MIN} to {wire.PROTOCOL_MAX}, "
        f"the client {lowest} to {highest}",
        fatal=True,
    )


def denied(peer: Peer) -> Refused:
    return Refused(
        "DENIED",
        f"user {peer.uid} and its groups are not in socket.allow_uids or socket.allow_gids",
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
