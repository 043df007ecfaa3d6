"""The tiers without a running daemon: a real router, promoter and hand-over on given stores.

The spooler is built and does not run. What is sent to it stays in its inbox, which tests read.
"""

from pathlib import Path
from typing import Any

import trio

from actors.config.catalogue import Catalogue, Definitions
from actors.config.settings import Settings
from actors.model.clock import Clock, wall_ms
from actors.ports.tiers import ColdQueue, WarmTier
from actors.spooler.arrivals import Arrivals
from actors.spooler.messages import SpoolerMessage
from actors.spooler.spooler import Spooler
from actors.tiers.queue_tiers import QueueMemory
from actors.tiers.tiers import Tiers
from daemon.journal.files import Files
from daemon.journal.journal import Journal
from tests.rig.kept import kept_in_memory

NOWHERE = Path("/nonexistent")
"""A spooler that does not run touches no file."""


def make_catalogue(now_ms: Clock = wall_ms, **settings: Any) -> Catalogue:
    return Catalogue(Settings.model_validate(settings), kept_in_memory(Definitions()), now_ms)


def make_tiers(
    warm: WarmTier,
    cold: ColdQueue,
    now_ms: Clock = wall_ms,
    *,
    bytes_max: int | None = None,
    acquire_s: float | None = None,
    **settings: Any,
) -> Tiers:
    checked = Settings.model_validate(settings)
    catalogue = Catalogue(checked, kept_in_memory(Definitions()), now_ms)
    journal = Journal(Files(NOWHERE), checked.spool)
    spooler = Spooler(checked.spool, journal, catalogue, Arrivals(catalogue))
    memory = QueueMemory(bytes_max)
    # Tests lease for shorter than operators may.
    lease = {} if acquire_s is None else {"acquire_timeout": acquire_s}
    checked = checked.model_copy(update={"cold": checked.cold.model_copy(update=lease)})
    return Tiers(checked, spooler, warm, cold, catalogue, memory, now_ms)


def sent_to_spooler(tiers: Tiers) -> trio.MemoryReceiveChannel[SpoolerMessage]:
    return tiers.spooler._inbox
