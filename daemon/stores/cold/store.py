"""The cold store: what SQLite's and PostgreSQL's have in common.

Every method is one transaction, unless it says otherwise: a step of one of the modules beside this
one (`history`, ...), run by the store's `Database`. Durable on return, or within a second: as the
port says (actors/ports/tiers.py).
"""

from collections.abc import Mapping, Sequence

from actors.model.attempts import Attempts
from actors.model.finished import FinishedRow, Keeps, Past, keep_nothing
from actors.model.keys import Holder, KeyRules, Offer, no_keys
from actors.ports.tiers import (
    ColdRow,
    Look,
    NewRow,
    Outlook,
    RowOutcome,
    SeenRows,
    StoredAttempts,
    Stream,
    Unconfirmed,
)
from daemon.stores.cold import (
    attempts,
    claims,
    hand_over,
    history,
    keys,
    leasing,
    looks,
    offers,
    settling,
)
from daemon.stores.cold.connection import Database
from daemon.stores.cold.dead import ColdDeadLetters
from daemon.stores.cold.items import SingleItems
from daemon.stores.cold.job_ends import JobEnding
from daemon.stores.cold.keyed import window_of
from daemon.stores.cold.repeats import Repeats
from daemon.stores.cold.ticks import ColdTicks
from daemon.stores.cold.triggers import ColdTriggers
from daemon.stores.cold.writes import ColdDecisions


class ColdStore:
    def __init__(self, db: Database) -> None:
        self._keeps: Keeps = keep_nothing
        self._rules: KeyRules = no_keys
        self._steps = steps = JobEnding(db, lambda: self._keeps, lambda: self._rules)
        self._repeats = Repeats()
        self.dead_letters = ColdDeadLetters(steps, lambda: self._keeps)
        self.items = SingleItems(steps, lambda: self._keeps)
        self.ticks = ColdTicks(steps)
        self.triggers = ColdTriggers(steps)
        self.decisions = ColdDecisions(steps)

    def keep_keys(self, rules: KeyRules) -> None:
        self._rules = rules

    async def store(self, rows: Sequence[NewRow]) -> None:
        # A dead letter must have room on a full disk; overflow must leave it some.
        await self._steps.write(
            lambda con: hand_over.store(con, rows),
            is_new_work=True,
            may_fill_disk=all(row.is_dead for row in rows),
        )

    async def confirm(self, rows: Sequence[bytes]) -> None:
        rules = self._rules
        await self._steps.write(lambda con: hand_over.confirm(con, {None: rows}, rules))

    async def unconfirmed(self) -> list[Unconfirmed]:
        return await self._steps.read(hand_over.unconfirmed)

    async def forget(self, rows: Sequence[bytes]) -> None:
        await self._steps.write(lambda con: hand_over.forget(con, rows))

    async def offer(self, offered: Sequence[Offer]) -> list[bytes]:
        rules, repeats = self._rules, self._repeats
        return await self._steps.write(
            lambda con: offers.offer(con, offered, rules, repeats), is_new_work=True
        )

    async def key(self, queue: str, key: bytes) -> Holder | None:
        return await self._steps.read(lambda con: keys.show(con, queue, key))

    async def drop_key(self, queue: str, key: bytes) -> Holder | None:
        return await self._steps.write(lambda con: keys.drop(con, queue, key), is_repeatable=False)

    async def forget_keys(self) -> int:
        return await self._steps.write(offers.forget, is_durable=False)

    def keep_history(self, keeps: Keeps) -> None:
        self._keeps = keeps

    async def acquire(
        self,
        queue: str,
        lock: bytes,
        items_max: int,
        bytes_max: int,
        lease_s: float,
        except_flows: frozenset[str] = frozenset(),
        *,
        cuts: bool = False,
    ) -> list[ColdRow]:
        """`bytes_max` counts whole bodies, because they are in memory as a whole: each once,
        however many rows share it, plus 1 for each row."""
        lease_ms = round(lease_s * 1000)
        wish = leasing.Wish(queue, lock, items_max, bytes_max, lease_ms, except_flows, cuts)
        return await leasing.acquire(self._steps, wish)

    async def renew(self, locks: Sequence[bytes], lease_s: float) -> list[int]:
        lease_ms = round(lease_s * 1000)
        return await self._steps.write(
            lambda con: leasing.renew(con, locks, lease_ms), is_durable=False
        )

    async def release(self, lock: bytes, rows: Sequence[bytes]) -> None:
        await self._steps.write(lambda con: leasing.release(con, lock, rows), is_durable=False)

    async def release_all(self) -> int:
        """Frees the rows that earlier processes of this daemon had acquired; returns how many."""
        return await self._steps.write(leasing.release_all, is_durable=False)

    async def outlook(self, queue: str, except_flows: frozenset[str] = frozenset()) -> Outlook:
        return await self._steps.read(lambda con: leasing.outlook(con, queue, except_flows))

    async def settle(
        self, outcomes: Sequence[RowOutcome], *, is_durable: bool = False
    ) -> list[bool]:
        keeps, rules = self._keeps, self._rules
        return await self._steps.write(
            lambda con: settling.settle(con, outcomes, keeps, rules),
            is_durable=is_durable or any(outcome.moved for outcome in outcomes),
        )

    async def claim(
        self,
        queue: str,
        consumer: str,
        after: int,
        items_max: int,
        except_flows: frozenset[str] = frozenset(),
    ) -> Stream:
        """One claim has at most `claims.CLAIM_ROWS_MAX` rows."""
        keep, window = self._keeps(queue), window_of(self._rules(queue))
        wish = claims.Wish(queue, consumer, after, items_max, except_flows, keep, window)
        while True:
            stream = await self._steps.write(lambda con: claims.claim(con, wish))
            if stream is not None:
                return stream

    async def stream(self, queue: str, consumer: str) -> Stream:
        return await self._steps.read(lambda con: claims.stream(con, queue, consumer))

    async def streams(self) -> list[tuple[str, str]]:
        return await self._steps.read(claims.streams)

    async def drop_stream(self, queue: str, consumer: str) -> int:
        return await self._steps.write(lambda con: claims.drop(con, queue, consumer))

    async def fetch(
        self, queue: str, consumer: str, claim: int, first: int, rows_max: int, bytes_max: int
    ) -> SeenRows:
        wish = looks.Wish(queue, consumer, claim, first, rows_max, bytes_max)
        return await looks.fetch(self._steps, wish)

    async def peek(self, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Look:
        return await looks.peek(self._steps, queue, cursor, rows_max, bytes_max)

    async def note_history(self, rows: Sequence[FinishedRow]) -> None:
        """Nothing that must have room on a full disk: the ballast is not for it."""
        await self._steps.write(
            lambda con: history.note(con, rows, self._keeps), is_durable=False, is_new_work=True
        )

    async def history(self, queue: str, cursor: str, rows_max: int, bytes_max: int) -> Past:
        return await self._steps.read(
            lambda con: history.look(con, queue, cursor, rows_max, bytes_max)
        )

    async def attempts(self, queue: str) -> StoredAttempts:
        return await self._steps.read(lambda con: attempts.read(con, queue))

    async def own_attempts(self, queues: Sequence[str]) -> Mapping[str, Attempts]:
        return await self._steps.read(lambda con: attempts.read_own(con, queues))

    async def note_attempts(self, figures: Mapping[str, Attempts]) -> None:
        """Nothing that must have room on a full disk, as history."""
        await self._steps.write(
            lambda con: attempts.note(con, figures), is_durable=False, is_new_work=True
        )

    async def history_queues(self) -> list[str]:
        return await self._steps.read(history.queues)

    async def forget_history(self, queue: str, before_ms: int) -> int:
        """One step forgets at most `history.FORGOTTEN_ROWS_MAX` rows."""
        return await self._steps.write(
            lambda con: history.forget(con, queue, before_ms), is_durable=False
        )
