"""Ingest: accepts runs over the socket, hands each to the spooler, and answers.

It owns the listeners, the connections (`connection.py`) and what they share: the budget of bytes in
flight and the counts of refusals. It sends `Append` and `Inquire` to the spooler and stores
nothing: a run is durable when the spooler says so, and its client is told only then.

On drain it stops accepting, answers new pushes with DRAINING and sends every outstanding answer;
`run` returns when the last connection is closed. On cancel all connections are closed at once:
clients do not know about unanswered pushes and send them again; pushes that reached the spooler are
stored, and their answers are discarded.

Memory is bounded and follows the bytes that have arrived, not those that are announced. Each
connection has 16 KiB, and up to 256 KiB for a frame that has begun. Larger frames use
`inflight_bytes`, which one frame at a time may exceed; a frame exists twice while it is taken out
of its inbox.
"""

import socket
from contextlib import suppress
from typing import Any, Final

import structlog
import trio

from actors.config.settings import SocketSettings
from actors.ingest.connection import Connection
from actors.ingest.peer import Peer, denied, is_allowed, read_peer, read_peer_groups
from actors.ingest.requests import Controls, IngestShared, KeyedQueues, KnownQueues, Rows
from actors.ingest.window import Budget
from actors.model.internal_errors import INTERNAL_ERRORS
from actors.model.refusals import busy
from actors.spooler.client import SpoolerClient
from actors.workers.pull import Pull
from forebay import wire
from forebay.errors import Refused

REAP_INTERVAL_S: Final = 1.0

log = structlog.get_logger(__name__)


class Ingest:
    def __init__(
        self,
        settings: SocketSettings,
        catalogue: KnownQueues,
        spooler: SpoolerClient,
        keys: KeyedQueues,
        pull: Pull,
        rows: Rows,
        control: Controls,
    ) -> None:
        self._settings = settings
        self._shared = IngestShared(
            settings=settings,
            catalogue=catalogue,
            spooler=spooler,
            keys=keys,
            pull=pull,
            rows=rows,
            control=control,
            budget=Budget(settings.inflight_bytes),
            unread=Budget(settings.inflight_bytes),
        )
        self._connections: set[Connection] = set()
        self._is_full = False
        self._accepting = trio.CancelScope()
        self._last_left = trio.Event()
        self._ended = trio.Event()

    async def run(
        self,
        listeners: list[trio.SocketListener],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reap)
                task_status.started()
                with self._accepting:
                    await trio.serve_listeners(self._serve, listeners, handler_nursery=nursery)
                while self._connections:
                    self._last_left = trio.Event()
                    await self._last_left.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._ended.set()

    async def drain(self) -> None:
        """Ends all connections in good order; returns when `run` has nothing left to do.

        May be called more than once. If it is cancelled, draining continues.
        """
        if not self._shared.is_draining:
            log.info("ingest.draining", connections=len(self._connections))
            self._shared.is_draining = True
            self._accepting.cancel()
            for connection in self._connections:
                connection.drain()
        await self._ended.wait()

    def figures(self) -> dict[str, Any]:
        return {
            "connections": len(self._connections),
            "in_flight_bytes": self._shared.budget.taken,
            "refused": dict(self._shared.refused),
        }

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Serves one client. A bug ends its connection and no other."""
        try:
            await self._serve_client(stream)
        except* Exception as problems:
            INTERNAL_ERRORS.note(problems, "connection")

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        # The plain socket: sending and receiving without a checkpoint makes it fast.
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        peer = read_peer(sock)
        refused = self._refusal(sock, peer)
        if refused is not None:
            self._turn_away(sock, refused)
            return
        connection = Connection(sock, peer, self._shared)
        self._connections.add(connection)
        if self._shared.is_draining:
            connection.drain()
        try:
            await connection.run()
        finally:
            self._connections.remove(connection)
            self._last_left.set()

    def _refusal(self, sock: socket.socket, peer: Peer) -> Refused | None:
        settings = self._settings
        if not is_allowed(
            peer,
            read_peer_groups(sock) if settings.allow_gids else (),
            allow_uids=settings.allow_uids,
            allow_gids=settings.allow_gids,
        ):
            log.warning("ingest.denied", pid=peer.pid, uid=peer.uid, gid=peer.gid)
            return denied(peer)
        was_full = self._is_full
        self._is_full = len(self._connections) >= settings.max_connections
        if not self._is_full:
            return None
        if not was_full:
            log.warning("ingest.connections_exhausted", max_connections=settings.max_connections)
        return busy(settings.max_connections)

    def _turn_away(self, sock: socket.socket, refused: Refused) -> None:
        self._shared.refused[refused.code] += 1
        # An OSError means that the client is already gone.
        with sock, suppress(OSError):
            sock.send(wire.error(wire.CONNECTION, refused))

    async def _reap(self) -> None:
        """Ends connections that have taken too long."""
        while True:
            await trio.sleep(REAP_INTERVAL_S)
            now = trio.current_time()
            for connection in self._connections:
                try:
                    connection.tend(now)
                    what = connection.overdue(now)
                    if what is not None:
                        connection.expire(what)
                except Exception as problem:
                    connection.give_up(problem)
