"""Decisions about Spark writes: the port, over the steps of write_steps.py.

Durable on return, except `applied` and `forget`: without them a decision is only told again.

Seals share steps: a write of Spark seals as many stages as it has tasks, several at once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from actors.ports.writes import (
    Aborted,
    Decided,
    PublishWish,
    SealedStage,
    SharedReceipt,
    Unheard,
    Verdict,
    WritePart,
)
from daemon.stores.cold.connection import Database
from daemon.stores.cold.write_statements import APPLIED, UNFINISHED
from daemon.stores.cold.write_steps import (
    abort,
    drop,
    expire,
    forget,
    note,
    publish,
    receipt,
    seal,
    verdicts,
)

PARTS_MAX: Final = 5000
SEALS_MAX: Final = 64
"""Seals that share one step."""


class ColdDecisions:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._seals: list[_Seal] = []
        self._turn = trio.Lock()

    async def seal(self, write: bytes, stage: SealedStage) -> None:
        """Seals that arrive during another step share the next one. On cancel the stage may be
        sealed all the same."""
        one = _Seal(write, stage)
        self._seals.append(one)
        async with self._turn:
            while not one.is_done:
                await self._seal_next()
        if one.problem is not None:
            raise one.problem

    async def _seal_next(self) -> None:
        together, self._seals = self._seals[:SEALS_MAX], self._seals[SEALS_MAX:]
        # Others wait for the answers.
        with trio.CancelScope(shield=True):
            try:
                answers: Sequence[Exception | None] = await self._db.write(
                    lambda con: seal(con, [(one.write, one.stage) for one in together])
                )
            except Exception as problem:
                answers = [problem] * len(together)
        for one, answer in zip(together, answers, strict=True):
            one.is_done, one.problem = True, answer

    async def drop(self, write: bytes, stage: bytes) -> bool:
        return await self._db.write(lambda con: drop(con, write, stage))

    async def publish(self, wish: PublishWish) -> Decided:
        return await self._db.write(lambda con: publish(con, wish))

    async def abort(self, write: bytes, items: int) -> Aborted:
        return await self._db.write(lambda con: abort(con, write, items))

    async def expire(self, heard: Sequence[Unheard], ttl_ms: int) -> list[bytes]:
        return await self._db.write(lambda con: expire(con, heard, ttl_ms))

    async def verdicts(self, open_here: Sequence[bytes]) -> list[Verdict]:
        return await self._db.read(lambda con: verdicts(con, open_here))

    async def applied(self, writes: Sequence[bytes]) -> None:
        await self._db.write(
            lambda con: con.execute(APPLIED, con.daemon, list(writes)), is_durable=False
        )

    async def unfinished(self) -> list[bytes]:
        rows = await self._db.read(lambda con: con.fetch(UNFINISHED, con.daemon))
        return [write for (write,) in rows]

    async def note_parts(self, parts: Sequence[WritePart]) -> None:
        for first in range(0, len(parts), PARTS_MAX):
            await self._db.write(partial(note, parts=parts[first : first + PARTS_MAX]))

    async def receipt(self, write: bytes) -> SharedReceipt | None:
        return await self._db.read(lambda con: receipt(con, write))

    async def forget(self, age_ms: int) -> int:
        """At most `FORGOTTEN_MAX`."""
        return await self._db.write(lambda con: forget(con, age_ms), is_durable=False)


class _Seal:
    """A seal that waits for its turn."""

    def __init__(self, write: bytes, stage: SealedStage) -> None:
        self.write = write
        self.stage = stage
        self.is_done = False
        self.problem: Exception | None = None
