"""The daemon, composed: the channels, the actors, and how they start and stop. Read this first.

    client ──socket──► Ingest ──Append──► Spooler ──Lease──► Delivery ──► handler
                          ◄──answers──┘      ▲  └─QueueSeen──►  │
                                             └──────Settle──────┘

Starting: the lock on the state directory and the socket, in whose backlog clients wait while the
journal recovers. Stopping (SIGTERM, SIGINT): intake ends, deliveries under way are finished
within `drain_timeout`, the journal is sealed. A second signal does not wait.
"""

import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog
import trio

from actors.delivery import Delivery
from actors.ingest import Ingest
from actors.intake import QUEUES_MAX
from actors.messages import Drain, Finish, QueueSeen, SpoolerMessage
from actors.ports import Handler
from actors.settings import Settings
from actors.spooler import Spooler
from daemon.handlers import open_handler
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from daemon.listen import open_socket
from daemon.lock import StateLock

log = structlog.get_logger()

SPOOLER_INBOX: Final = 2048
FILES_MAX: Final = 65536
SWITCH_INTERVAL_S: Final = 0.0005
"""How soon the commit thread gets the interpreter back after a sync; Python's 5 ms would be felt
in every push under load."""


def main(settings: Settings) -> int:
    """Runs the daemon until it is told to stop; the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_file_limit()
    trio.run(serve, settings)
    return 0


async def serve(settings: Settings, make_files: Callable[[Path], Files] = Files) -> None:
    """The daemon's life. `make_files` lets a test stand between the journal and the disk."""
    with (
        StateLock(settings.state_dir),
        open_socket(settings.socket) as listening,
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals,
    ):
        to_spooler, spooler_inbox = trio.open_memory_channel[SpoolerMessage](SPOOLER_INBOX)
        to_delivery, delivery_inbox = trio.open_memory_channel[QueueSeen](QUEUES_MAX)

        journal = Journal(make_files(settings.state_dir / "spool"), settings.spool)
        spooler = Spooler(
            settings.spool,
            settings.queue,
            journal,
            inbox=spooler_inbox,
            own_inbox=to_spooler.clone(),
            seen=to_delivery,
        )
        delivery = Delivery(delivery_inbox, to_spooler.clone(), _handlers(settings))
        ingest = Ingest(
            settings.socket,
            [listening.listener],
            to_spooler.clone(),
            known_queue=lambda queue: settings.queue(queue) is not None,
        )

        # The last to start is the first to stop.
        async with trio.open_nursery() as storing:
            await storing.start(spooler.run)
            async with trio.open_nursery() as delivering:
                delivering.start_soon(delivery.run)
                async with trio.open_nursery() as receiving:
                    await receiving.start(ingest.run)
                    log.info(
                        "daemon.ready", socket=str(listening.path), state=str(settings.state_dir)
                    )
                    await _stop_wanted(signals)
                    storing.start_soon(_stop_at_once, signals, storing.cancel_scope)
                    deadline = trio.current_time() + settings.drain_timeout
                    receiving.cancel_scope.deadline = deadline
                    await to_spooler.send(Drain())
                    await ingest.drain()
                delivering.cancel_scope.deadline = deadline
                delivery.drain()
            await to_spooler.send(Finish())
            await spooler.finished.wait()
            storing.cancel_scope.cancel()
    log.info("daemon.stopped")


def _raise_file_limit() -> None:
    """A connection is a file; a shell's usual 1,024 would leave none for the journal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _stop_wanted(signals: AsyncIterator[int]) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            log.info("daemon.draining", signal=signal.Signals(number).name)
            return
        log.warning("daemon.cannot_reload", hint="restart to read the configuration again")


async def _stop_at_once(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    """A second signal does not wait for deliveries. The journal is still sealed."""
    async for number in signals:
        if number != signal.SIGHUP:
            scope.cancel()
            return


def _handlers(settings: Settings) -> Callable[[str], Handler | None]:
    def open_for(queue: str) -> Handler | None:
        queue_settings = settings.queue(queue)
        return None if queue_settings is None else open_handler(queue, queue_settings)

    return open_for
