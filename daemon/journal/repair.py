"""Repairs a stopped spool, for `forebay spool repair`.

A start of the daemon trusts the index of a sealed chunk; a repair reads every block that holds
items. Apart from that it is the same recovery, with the same adoption of what it finds, so that it
leaves the record log as a start would leave it.
"""

import time
from dataclasses import dataclass

from actors.config.settings import SpoolSettings
from actors.ports.journal import Damage
from actors.spooler.backlog import Backlog
from actors.spooler.ledger import Ledger
from actors.spooler.lending import Loans
from actors.spooler.recovery import Adoption
from actors.spooler.staging import Staging
from actors.spooler.writes import Writes
from daemon.journal.files import Files
from daemon.journal.journal import Journal


@dataclass(frozen=True, slots=True)
class Repaired:
    chunks: int
    held: int
    staged: int
    damage: Damage
    """The damage that was found and repaired."""


def repair_spool(files: Files, settings: SpoolSettings) -> Repaired:
    """The caller holds the state directory's lock. Durable on return."""
    journal = Journal(files, settings)
    began = time.monotonic()
    recovered = journal.recover(0, lambda _done, _chunks: None, thorough=True)
    writes = Writes()
    ledger = Ledger(writes)
    backlog = Backlog(0, 0)
    staging = Staging(writes, ledger, backlog)
    adoption = Adoption(writes, ledger, backlog, Loans(ledger), staging)
    adoption.adopt(recovered, began)
    if recovered.records or recovered.damage.records:
        journal.keep_records(writes.records())
    journal.close()
    held = sum(totals.held for totals in ledger.books.values())
    return Repaired(len(ledger), held, ledger.staged.total(), recovered.damage)
