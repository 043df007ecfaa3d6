"""The peer of a Unix socket, as reported by the kernel, and whether it may connect."""

import errno
import socket
import struct
from collections.abc import Collection
from typing import Final, NamedTuple

from forebay.errors import Refused

_CREDENTIALS = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59
"""Linux's number; the socket module has no name for it."""
_GROUPS_BYTES: Final = 1024
"""The most that Python's getsockopt accepts: 256 groups."""


class Peer(NamedTuple):
    pid: int
    uid: int
    gid: int


def read_peer(sock: socket.socket) -> Peer:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def read_peer_groups(sock: socket.socket) -> frozenset[int]:
    """The peer's supplementary groups when it connected; empty if it has more than 256."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError as error:
        if error.errno in (errno.ERANGE, errno.ENOPROTOOPT):
            return frozenset()
        raise
    return frozenset(struct.unpack(f"{len(raw) // 4}I", raw))


def is_allowed(
    peer: Peer,
    groups: Collection[int],
    *,
    allow_uids: Collection[int],
    allow_gids: Collection[int],
) -> bool:
    """Both lists empty: all that the file's mode lets in. Otherwise one of them must match."""
    if not allow_uids and not allow_gids:
        return True
    return (
        peer.uid in allow_uids
        or peer.gid in allow_gids
        or any(group in allow_gids for group in groups)
    )


def denied(peer: Peer) -> Refused:
    return Refused(
        "DENIED",
        f"user {peer.uid} and its groups are not in socket.allow_uids or socket.allow_gids",
        fatal=True,
    )
