"""A cold store that kills its own process at a named point, the n-th time that it is reached.

`before` and `after` a step are outside of its transaction; in the `mid` of it everything is
written and nothing committed. A step is named after what it is about: `dead_store` stores dead
letters of the journal, `settle_moved` records items that failed and become rows of their own,
`settle_dead` such that died, `settle_delivered` none of them. With `recovery` in their names are
the points of a daemon that finishes the hand-overs of the one before it.

Between `after_store` and `before_confirm` lies the journal's mark, with points of its own.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Final, TypeVar

from actors.model.finished import Keeps
from actors.ports.tiers import (
    ColdRow,
    ColdTotals,
    DeadChange,
    DeadFilter,
    NewRow,
    RowOutcome,
    StoreUnavailable,
    Unconfirmed,
)
from actors.ports.writes import Aborted, Decided, PublishWish, SealedStage
from daemon.stores.cold.connection import Database as Steps
from daemon.stores.cold.dead import ColdDeadLetters
from daemon.stores.cold.writes import ColdDecisions
from daemon.stores.sqlite.connection import Database
from daemon.stores.sqlite.store import BALLAST_BYTES, SqliteCold
from tests.crash.killer import Killer, die

T = TypeVar("T")


def around(*steps: str) -> tuple[str, ...]:
    return tuple(f"{when}_{step}" for step in steps for when in ("before", "mid", "after"))


HAND_OVER_POINTS: Final = around("store", "confirm")
DEAD_POINTS: Final = around("dead_store")
PROMOTION_POINTS: Final = ("mid_acquire", "after_acquire", *around("settle_delivered"))
FAILURE_POINTS: Final = around("settle_moved", "settle_dead")
RECOVERY_POINTS: Final = ("after_unconfirmed", *around("recovery_confirm"))
"""Reached by a daemon that finds something stored and not confirmed."""
CLOSING_POINTS: Final = ("before_cold_close", "after_cold_close")
DOUBT: Final = "in_doubt_of_store"
"""Nobody is killed there: the rows are stored, and the store says that it does not know."""
DOUBTED_QUEUE: Final = "wide"
"""Of which nothing is stored but what overflows."""
WRITE_POINTS: Final = around("seal", "publish", "abort")
"""Reached where there are writes that were staged."""
LETTER_POINTS: Final = around("letters_retry", "letters_remove")
"""Reached when somebody asks for it."""
COLD_POINTS: Final = (
    *HAND_OVER_POINTS,
    *DEAD_POINTS,
    *PROMOTION_POINTS,
    *FAILURE_POINTS,
    *RECOVERY_POINTS,
    *CLOSING_POINTS,
    *LETTER_POINTS,
)

_step: ContextVar[str] = ContextVar("_step", default="")
"""What the task is about to do."""


class KillingCold(SqliteCold):
    def __init__(self, path: Path, timeout_s: float, killer: Killer) -> None:
        super().__init__(path, timeout_s)
        self._killer = killer
        self._use(KillingDatabase(path, timeout_s, killer))
        self.dead_letters = KillingDeadLetters(self._steps, lambda: self._keeps, killer)
        self.decisions = KillingDecisions(self._steps, killer)
        self._is_recovering = True
        self._forgets = True

    async def store(self, rows: Sequence[NewRow]) -> None:
        step = "dead_store" if any(row.is_dead for row in rows) else "store"
        await take_step(self._killer, step, lambda: super(KillingCold, self).store(rows))
        is_overflow = all(row.head.queue == DOUBTED_QUEUE for row in rows)
        if is_overflow and self._killer.arrives(DOUBT):
            self._forgets = False
            raise StoreUnavailable("it was stored, and nobody is told so")

    async def forget(self, rows: Sequence[bytes]) -> None:
        if not self._forgets:
            raise StoreUnavailable("not in this life")
        await super().forget(rows)

    async def confirm(self, rows: Sequence[bytes]) -> None:
        step = "recovery_confirm" if self._is_recovering else "confirm"
        await take_step(self._killer, step, lambda: super(KillingCold, self).confirm(rows))

    async def unconfirmed(self) -> list[Unconfirmed]:
        found = await super().unconfirmed()
        if found:
            self._killer.reach("after_unconfirmed")
        return found

    async def totals(self) -> dict[str, ColdTotals]:
        self._is_recovering = False
        return dict(await super().totals())

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
        _step.set("acquire")
        wanted = (queue, lock, items_max, bytes_max, lease_s, except_flows)
        rows = await super().acquire(*wanted, cuts=cuts)
        if rows:
            self._killer.reach("after_acquire")
        return rows

    async def settle(
        self, outcomes: Sequence[RowOutcome], *, is_durable: bool = False
    ) -> list[bool]:
        moved = [row for outcome in outcomes for row in outcome.moved]
        step = "settle_moved" if moved else "settle_delivered"
        if any(row.is_dead for row in moved):
            step = "settle_dead"
        return await take_step(
            self._killer,
            step,
            lambda: super(KillingCold, self).settle(outcomes, is_durable=is_durable),
        )

    async def close(self) -> None:
        self._killer.reach("before_cold_close")
        await super().close()
        self._killer.reach("after_cold_close")


class KillingDatabase(Database):
    def __init__(self, path: Path, timeout_s: float, killer: Killer) -> None:
        super().__init__(path, timeout_s, BALLAST_BYTES)
        self._killer = killer

    async def write(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        is_durable: bool = True,
        is_new_work: bool = False,
    ) -> T:
        step = _step.get()

        def work_and_die(db: sqlite3.Connection) -> T:
            result = work(db)
            # To acquire nothing is no point.
            if (result or step != "acquire") and self._killer.arrives(f"mid_{step}"):
                die()
            return result

        return await super().write(work_and_die, is_durable=is_durable, is_new_work=is_new_work)


class KillingDecisions(ColdDecisions):
    def __init__(self, steps: Steps, killer: Killer) -> None:
        super().__init__(steps)
        self._killer = killer

    async def seal(self, write: bytes, stage: SealedStage) -> None:
        step = super().seal
        await take_step(self._killer, "seal", lambda: step(write, stage))

    async def publish(self, wish: PublishWish) -> Decided:
        step = super().publish
        return await take_step(self._killer, "publish", lambda: step(wish))

    async def abort(self, write: bytes, items: int) -> Aborted:
        step = super().abort
        return await take_step(self._killer, "abort", lambda: step(write, items))


class KillingDeadLetters(ColdDeadLetters):
    def __init__(self, steps: Steps, keeps: Callable[[], Keeps], killer: Killer) -> None:
        super().__init__(steps, keeps)
        self._killer = killer

    async def retry(self, which: DeadFilter, limit: int, cursor: bytes | None = None) -> DeadChange:
        return await take_step(
            self._killer,
            "letters_retry",
            lambda: super(KillingDeadLetters, self).retry(which, limit, cursor),
        )

    async def remove(
        self, which: DeadFilter, limit: int, cursor: bytes | None = None
    ) -> DeadChange:
        return await take_step(
            self._killer,
            "letters_remove",
            lambda: super(KillingDeadLetters, self).remove(which, limit, cursor),
        )


async def take_step(killer: Killer, step: str, work: Callable[[], Awaitable[T]]) -> T:
    killer.reach(f"before_{step}")
    _step.set(step)
    result = await work()
    _step.set("")
    killer.reach(f"after_{step}")
    return result
