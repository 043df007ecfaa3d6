import os
import socket

import pytest

from actors.ingest.peer import Peer, is_allowed, read_peer, read_peer_groups

ANN = Peer(pid=1, uid=1000, gid=100)


def test_kernel_tells_who_connected() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert read_peer(ours) == (os.getpid(), os.getuid(), os.getgid())
        assert read_peer_groups(ours) == frozenset(os.getgroups())


@pytest.mark.parametrize(
    "uids,gids,groups,allowed",
    [
        ((), (), (), True),
        ((1000,), (), (), True),
        ((1001,), (), (), False),
        ((), (100,), (), True),
        ((), (101,), (), False),
        ((), (101,), (50, 101), True),
        ((1001,), (100,), (), True),
        ((1001,), (101,), (102,), False),
        ((100,), (1000,), (), False),
    ],
)
def test_user_or_one_of_the_groups_must_be_listed_if_anything_is(
    uids: tuple[int, ...], gids: tuple[int, ...], groups: tuple[int, ...], allowed: bool
) -> None:
    assert is_allowed(ANN, groups, allow_uids=uids, allow_gids=gids) is allowed
