"""What a recovery makes of a state directory: every item that is held or dead, and the books.

The journal and the cold store are looked into as a daemon would that starts: what is stored in
cold and not confirmed is the cold store's, and the journal's no more, unless the journal has
settled it itself. On the way everything is checked that holds of any state directory, whatever
happened to it: an item has one owner, the counts are those of what is there, and each store has
what the other has given it.
"""

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from structlog.testing import capture_logs

from actors.config.settings import SpoolSettings
from actors.model.books import Books, Totals, merge
from actors.model.runs import Origin, StoredRun, unpack_origin
from actors.model.slices import indexes
from actors.ports.journal import Damage, RecoveredChunk
from actors.ports.tiers import ColdTotals
from daemon.journal.journal import Journal
from daemon.stores.cold.rows import checked, unpack_bits
from daemon.stores.sqlite.books import read_totals
from forebay.run import Run
from tests.crash.named_files import QuickFiles

COLD: Final = "cold.sqlite"
SELECT_ROWS: Final = "SELECT body_id, state, queue, bits, attempt, died_at, origin FROM runs"


@dataclass(frozen=True, slots=True)
class FoundItem:
    queue: str
    payload: bytes
    attempt: int
    """Attempts that have failed."""


@dataclass(slots=True)
class Found:
    books: Books = field(default_factory=dict)
    """Of both stores together."""
    live: dict[str, FoundItem] = field(default_factory=dict)
    in_cold: set[str] = field(default_factory=set)
    """Those of `live` that the cold store owns."""
    dead: dict[str, FoundItem] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)
    unconfirmed: int = 0
    """Items that a daemon will find stored and not confirmed."""
    settled_before: int = 0
    """Items that are stored in cold, and that the journal kept and has settled."""
    chunks: list[RecoveredChunk] = field(default_factory=list)

    def has_ended(self, origin: Origin) -> bool:
        """The journal has settled it, and not handed it over."""
        return any(
            chunk.ended(origin.position, origin.run_id) & origin.bits for chunk in self.chunks
        )


def look_into(state: Path, settings: SpoolSettings, copy: Path) -> Found:
    """Recovers a copy; the stores themselves stay as the dead daemon left them."""
    found = Found()
    copy.mkdir()
    if (state / "spool").exists():
        shutil.copytree(state / "spool", copy / "spool")
        _look_into_journal(found, QuickFiles(copy / "spool"), settings)
    if (state / COLD).exists():
        for path in state.glob(f"{COLD}*"):
            # The index of the log is made anew from the log, as after a crash.
            if not path.name.endswith((".ballast", "-shm")):
                shutil.copy(path, copy)
        with closing(sqlite3.connect(copy / COLD, isolation_level=None)) as db:
            _ColdLook(found, db).look()
    shutil.rmtree(copy)
    _count(found)
    return found


def _look_into_journal(found: Found, files: QuickFiles, settings: SpoolSettings) -> None:
    with capture_logs():
        journal = Journal(files, settings)
        recovered = journal.recover(0, lambda done, chunks: None)
        found.damage = recovered.damage
        found.chunks = recovered.chunks
        merge(found.books, recovered.base)
        for chunk in recovered.chunks:
            merge(found.books, chunk.totals)
            for live in chunk.live:
                (run,) = journal.read([(chunk.number, live.place)])
                assert isinstance(run, StoredRun), f"a live run cannot be read: {run}"
                items = _items(Run(run.head, run.data))
                attempts = dict.fromkeys(range(run.head.count), run.head.attempt)
                for portion in live.portions:
                    attempts |= dict.fromkeys(indexes(portion.bits), portion.attempt)
                for index, (item, payload) in enumerate(items):
                    if not live.done >> index & 1:
                        assert item not in found.live, f"{item} is stored twice"
                        found.live[item] = FoundItem(run.head.queue, payload, attempts[index])
    files.let_go()


class _ColdLook:
    def __init__(self, found: Found, db: sqlite3.Connection) -> None:
        self._found = found
        self._db = db
        self._held: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._dead: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        """What is taken when the hand-overs are finished, beside what was taken before."""
        self._moved: Counter[str] = Counter()
        """Of that, what the journal still has."""

    def look(self) -> None:
        (problem,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        assert problem == "ok", problem
        if not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            return  # It was being made.
        bodies: dict[bytes, Run] = {}
        for body_id, *row in self._db.execute(SELECT_ROWS):
            if body_id not in bodies:
                bodies[body_id] = self._run(body_id)
            self._enter(bodies[body_id], *row)
        needed = {*bodies, *(id_ for (id_,) in self._db.execute("SELECT body_id FROM history"))}
        (stored,) = self._db.execute("SELECT count(*) FROM bodies").fetchone()
        assert stored == len(needed), "there are bodies that no row needs"
        self._check_books(read_totals(self._db))

    def _run(self, body_id: bytes) -> Run:
        """BadRow if the body is not what was stored."""
        found = self._db.execute("SELECT data FROM bodies WHERE id = ?", (body_id,)).fetchone()
        assert found is not None, "a body is missing"
        return Run(checked(body_id, found[0]), found[0])

    def _enter(
        self,
        run: Run,
        state: str,
        queue: str,
        packed: bytes,
        attempt: int,
        died_at: int | None,
        origin: bytes,
    ) -> None:
        found, bits = self._found, unpack_bits(packed)
        assert queue == run.head.queue
        if state == "STORED" and found.has_ended(unpack_origin(origin)):
            # It was stored and nobody knew; the next daemon forgets it.
            found.settled_before += bits.bit_count()
            return
        items = _items(run)
        is_dead = died_at is not None
        for index in indexes(bits):
            item, payload = items[index]
            assert item not in found.in_cold | found.dead.keys(), f"{item} is in two rows"
            if state == "STORED":
                self._taken[queue] += 1
                if found.live.pop(item, None) is not None:
                    self._moved[queue] += 1
            else:
                assert item not in found.live, f"{item} has two owners"
            if is_dead:
                found.dead[item] = FoundItem(queue, payload, attempt)
            else:
                found.live[item] = FoundItem(queue, payload, attempt)
                found.in_cold.add(item)
        if state == "STORED":
            found.unconfirmed += bits.bit_count()
        elif is_dead:
            assert state == "FAILED"
            self._dead[queue] += bits.bit_count()
        else:
            assert state == "COLD_QUEUED"
            self._held[queue] += bits.bit_count()
            self._rows[queue] += 1

    def _check_books(self, totals: dict[str, ColdTotals]) -> None:
        for queue in totals.keys() | self._held.keys() | self._taken.keys() | self._dead.keys():
            own = totals.get(queue, ColdTotals())
            assert own.held == self._held[queue]
            assert own.runs == self._rows[queue]
            assert own.dead == self._dead[queue]
            assert own.taken == own.delivered + own.dead + own.deleted + own.held
            journal = self._found.books.setdefault(queue, Totals())
            journal.handed_over += self._moved[queue]
            assert journal.handed_over == own.taken + self._taken[queue], (
                f"{queue}: the journal has given {journal.handed_over}, "
                f"cold has taken {own.taken} and stored {self._taken[queue]}"
            )
            journal.delivered += own.delivered
            journal.deleted += own.deleted


def _count(found: Found) -> None:
    """Puts dead letters into the books; what is held follows, and must be what is there."""
    dead = Counter(item.queue for item in found.dead.values())
    held = Counter(item.queue for item in found.live.values())
    for queue, totals in found.books.items():
        totals.dead += dead[queue]
        # What was handed over is counted where it is now.
        totals.handed_over = 0
        assert totals.held == held[queue], f"{queue}: {totals} and {held[queue]} live items"


def _items(run: Run) -> list[tuple[str, bytes]]:
    return list(zip(run.item_ids(), run.payloads(), strict=True))
