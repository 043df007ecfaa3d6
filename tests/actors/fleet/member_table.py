"""The fleet's list of daemons in memory, on trio's clock, and a journal with given books."""

from dataclasses import replace
from typing import cast

import trio

from actors.model.books import Totals
from actors.ports.fleet import (
    Member,
    MemberList,
    MemberNote,
    MemberReport,
    Members,
    SharedCounts,
)
from actors.ports.tiers import ColdQueue, StoreUnavailable
from actors.spooler.messages import Inquire
from actors.spooler.report import make_entry
from actors.tiers.tiers import Tiers
from actors.tiers.warm import MemoryWarm
from tests.rig.tiers_alone import make_tiers, sent_to_spooler

START_MS = 1_700_000_000_000


def now_ms() -> int:
    return START_MS + round(trio.current_time() * 1000)


class Table:
    """What the daemons share."""

    def __init__(self) -> None:
        self.members: dict[bytes, Member] = {}
        self.swept = 0
        self.is_away = False

    def of(self, daemon: bytes) -> "TableOf":
        return TableOf(self, daemon)


class TableOf:
    """One daemon's `Members`."""

    def __init__(self, table: Table, daemon: bytes) -> None:
        self._table = table
        self._daemon = daemon
        self.notes: list[tuple[float, MemberNote]] = []
        self.shared = SharedCounts(0, 0)

    @property
    def reports(self) -> list[MemberReport]:
        return [note.report for _, note in self.notes]

    async def _step(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._table.is_away:
            raise StoreUnavailable("the server is away")

    async def counts(self) -> SharedCounts:
        await self._step()
        return self.shared

    async def note(self, note: MemberNote) -> None:
        await self._step()
        self.notes.append((trio.current_time(), note))
        at_ms, known = now_ms(), self._table.members.get(self._daemon)
        age_ms = note.hand_over_age_ms
        member = Member(self._daemon, "host", "1.0", at_ms - note.up_ms, at_ms, 0, note.report)
        if known is not None and not note.is_first:
            member = replace(member, started_ms=known.started_ms)
        if age_ms is not None:
            member = replace(member, last_hand_over_ms=at_ms - age_ms)
        self._table.members[self._daemon] = member

    async def all(self) -> MemberList:
        await self._step()
        return MemberList(now_ms(), [one for _, one in sorted(self._table.members.items())])

    async def forget(self, daemon: bytes, unseen_ms: int) -> bool:
        await self._step()
        found = self._table.members.get(daemon)
        if found is None or found.seen_ms >= now_ms() - unseen_ms:
            return False
        del self._table.members[daemon]
        return True

    async def sweep(self, unseen_ms: int) -> int:
        await self._step()
        self._table.swept += 1
        return 0


def as_port(table: TableOf) -> Members:
    return table


class FakeJournal:
    """Answers in place of a spooler that does not run."""

    def __init__(self) -> None:
        self.warm = MemoryWarm(now_ms=now_ms)
        self.tiers: Tiers = make_tiers(self.warm, cast(ColdQueue, object()), now_ms)
        self.books = Totals()
        self.staged = 0
        self.is_silent = False

    async def run(self) -> None:
        async for message in sent_to_spooler(self.tiers):
            assert isinstance(message, Inquire)
            if not self.is_silent:
                entry = make_entry(self.books, 0, 0)
                entry["staged"] = self.staged
                message.reply.put({"daemon": entry, "queues": {}, "spool": {}})  # type: ignore[typeddict-item]
