"""Adoption: turns what recovery found on disk into the state of the restarted spooler.

A part of the spooler, used once at start. Runs are taken over as places: nothing is read before it
is needed. Items that the cold store had already stored before the restart are disowned: the journal
marks them as handed over, unless some of them were settled here after all.
"""

import time
from collections.abc import Iterable, Sequence

import structlog

from actors.model.books import parse_account
from actors.model.clock import wall_ms
from actors.model.failures import bounded, without
from actors.model.runs import Origin
from actors.model.slices import item_bits
from actors.ports.journal import LiveRun, Recovered, RecoveredChunk
from actors.spooler.backlog import Backlog
from actors.spooler.ledger import Ledger
from actors.spooler.lending import Loans
from actors.spooler.staging import Staging
from actors.spooler.writes import Phase, Writes

log = structlog.get_logger()


class Adoption:
    def __init__(
        self,
        writes: Writes,
        ledger: Ledger,
        backlog: Backlog,
        loans: Loans,
        staging: Staging,
    ) -> None:
        self._writes = writes
        self._ledger = ledger
        self._backlog = backlog
        self._loans = loans
        self._staging = staging
        self._disowned: dict[int, list[Origin]] = {}
        """By position: what the cold store had stored before the restart."""
        self._ended: set[Origin] = set()

    def disown(self, origins: Iterable[Origin]) -> None:
        """The cold store has items from there; call it before `adopt`."""
        for origin in origins:
            self._disowned.setdefault(origin.position, []).append(origin)

    def has_let_go(self, origin: Origin) -> bool:
        """Whether the cold store may keep what it took from there. Not if some of it was settled
        here: the store had not answered, the journal kept the items, and the daemon ended before
        the cold store could be told."""
        return origin not in self._ended

    def adopt(self, recovered: Recovered, began: float) -> None:
        lost = self._writes.restore(recovered.records)
        if lost:
            log.error("spooler.records_lost", records=lost)
        self._note_moved(recovered.chunks)
        self._ledger.load(recovered.base, recovered.chunks)
        for chunk in recovered.chunks:
            self._find_ended(chunk)
            for live in chunk.live:
                self._adopt_run(live)
        if lost or recovered.damage.records:
            log.error("spooler.writes_kept", writes=self._writes.keep_open())
        (log.warning if recovered.damage else log.info)(
            "spooler.recovered",
            chunks=len(recovered.chunks),
            runs=self._ledger.live_runs,
            held=self._ledger.held_items(),
            scanned_bytes=recovered.scanned_bytes,
            seconds=round(time.monotonic() - began, 3),
            **recovered.damage.as_dict(),
        )

    def _note_moved(self, chunks: Sequence[RecoveredChunk]) -> None:
        """Moved runs say so themselves, even if the record of the move is lost."""
        accounts = (parse_account(name) for chunk in chunks for name in chunk.totals)
        for write in {account.write for account in accounts if account.is_moved}:
            if write not in self._writes.moved:
                self._writes.note_moved(write, wall_ms())

    def _adopt_run(self, live: LiveRun) -> None:
        account = parse_account(live.account)
        if account.write:
            phase = self._writes.phase(account.write, account.stage)
            if phase is Phase.ABORTED:
                return
            if phase is Phase.OPEN:
                self._ledger.add_live(live.size)
                self._staging.recover(account, live, wall_ms())
                return
            self._ledger.note_account(live.position, live.account)
        self._ledger.add_live(live.size)
        done = live.done
        for origin in self._disowned.get(live.position, ()):
            if origin.run_id == live.run_id and self.has_let_go(origin):
                done |= self._loans.disown(live._replace(done=done), origin.bits)
        if done == item_bits(0, live.items):
            return
        live = live._replace(done=done)
        portions = bounded(without(live.portions, done), wall_ms())
        self._loans.remember(live.position, done, portions)
        self._backlog.add_place(account.queue, live.priority, live.place)

    def _find_ended(self, chunk: RecoveredChunk) -> None:
        """Finds disowned items that were settled here all the same."""
        for position, origins in self._disowned.items():
            if chunk.number <= position < chunk.number + chunk.used_bytes:
                self._ended |= {
                    origin
                    for origin in origins
                    if chunk.ended(origin.position, origin.run_id) & origin.bits
                }
