"""The socket that requests go through: what it waits for, and what it says when it cannot."""

import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from daemon.handlers.http.connection import TcpSocket

MUCH = bytes(range(256)) * 32 * 1024
"""More than two sockets hold."""


async def pair() -> tuple[TcpSocket, trio.SocketStream]:
    listener = trio.socket.socket()
    with listener:
        await listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        stream = await trio.open_tcp_stream(*listener.getsockname())
        accepted, _ = await listener.accept()
    return TcpSocket(stream), trio.SocketStream(accepted)


async def test_much_is_sent_as_it_is_read() -> None:
    ours, theirs = await pair()
    got = bytearray()

    async def read() -> None:
        while len(got) < len(MUCH):
            got.extend(await theirs.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, MUCH)
        await wait_all_tasks_blocked()
        nursery.start_soon(read)
    assert got == MUCH
    ours.close()
    await theirs.aclose()


async def test_whoever_is_cancelled_sends_nothing_more() -> None:
    ours, theirs = await pair()
    with trio.CancelScope() as scope:
        scope.cancel()
        await ours.send_all(b"request")
    assert scope.cancelled_caught
    ours.close()
    assert await theirs.receive_some() == b""
    await theirs.aclose()


async def test_a_send_that_waits_for_room_can_be_cancelled() -> None:
    ours, theirs = await pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, MUCH)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    ours.close()
    await theirs.aclose()


async def test_news_and_the_end() -> None:
    ours, theirs = await pair()
    assert not ours.has_news
    await theirs.send_all(b"answer")
    await trio.lowlevel.wait_readable(ours._socket)
    assert ours.has_news
    assert await ours.receive_some(4) == b"answ"
    assert await ours.receive_some(4) == b"er"
    assert not ours.has_news
    await theirs.aclose()
    assert await ours.receive_some(4) == b""
    assert ours.has_news
    ours.close()


async def test_a_reset_is_a_broken_stream_for_both_ways() -> None:
    ours, theirs = await pair()
    theirs.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    theirs.socket.close()
    with pytest.raises(trio.BrokenResourceError):
        await ours.receive_some(4)
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(b"more")
    ours.close()


async def test_closing_wakes_whoever_waits() -> None:
    ours, theirs = await pair()

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some(4)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        ours.close()
    await theirs.aclose()
