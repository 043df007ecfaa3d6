"""Decisions about writes in PostgreSQL: one row a write, one row a sealed stage, one a version.

Every change of a write locks its row first: sealing shares the lock with other tasks' sealing,
deciding has it alone. So a stage is either there when its write is decided, or is told that it
comes too late. A decision is one transaction, however many stages there are; whoever comes second
(another publish, an abort, the expiry) finds it and answers accordingly. The version of an
application is locked behind the write, never before it.

The order in which a publish is judged is that of actors/spooler/writes.py, which does the same for
a daemon that is alone. What a journal published before it shared this store is answered from there
(`WriteView`), and stages that it sealed then are taken up when they are named.

What it can't do: forget a write of which a daemon that is gone for good has a published stage.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from actors.ports.writes import (
    DECIDED,
    Aborted,
    Published,
    PublishWish,
    SealedStage,
    SharedReceipt,
    Unheard,
    Verdict,
    WritePart,
)
from daemon.stores.cold.text import from_text, to_text
from daemon.stores.postgres.connection import Connection, Database
from daemon.stores.postgres.write_statements import (
    ADD,
    APPLIED,
    BEGIN_MOVED,
    BEGIN_PARTS,
    DROP,
    DROP_ALL,
    DROPPED_ITEMS,
    END,
    EXPIRE,
    FORGET,
    FORGET_APPS,
    HEARD,
    LOCK,
    LOCK_VERSION,
    LOOK,
    NOTE,
    NOTE_VERSION,
    OPEN,
    OPEN_OLD,
    PART,
    PUBLISH,
    RECEIPT,
    SEALED,
    SHARE,
    SHOW,
    STAGED,
    STATE,
    UNFINISHED,
    VERDICTS,
)
from forebay.errors import Refused

APPS_MAX: Final = 100_000
"""Of so many applications the last version is known; the one that was quiet longest goes first."""
FORGOTTEN_MAX: Final = 5000
"""In one transaction."""
PARTS_MAX: Final = 5000


class PostgresDecisions:
    """Made by PostgresCold, whose connections it shares."""

    def __init__(
        self,
        db: Database,
        daemon: bytes,
        now_ms: Callable[[], int | None],
        notices: Callable[[set[str]], str | None],
    ) -> None:
        self._db = db
        self._daemon = daemon
        self._now_ms = now_ms
        self._notices = notices

    async def seal(self, write: bytes, stage: SealedStage) -> None:
        await self._db.write(lambda con: _seal(con, write, stage, self._daemon, self._now_ms()))

    async def drop(self, write: bytes, stage: bytes) -> bool:
        return await self._db.write(
            lambda con: _drop(con, write, stage, self._daemon, self._now_ms())
        )

    async def publish(self, wish: PublishWish) -> Published:
        return await self._db.write(
            lambda con: _publish(con, wish, self._daemon, self._now_ms()), after=self._tell
        )

    async def abort(self, write: bytes, items: int) -> Aborted:
        return await self._db.write(
            lambda con: _abort(con, write, items, self._daemon, self._now_ms()), after=self._tell
        )

    async def expire(self, heard: Sequence[Unheard], ttl_ms: int) -> list[bytes]:
        return await self._db.write(
            lambda con: _expire(con, heard, ttl_ms, self._now_ms()),
            after=lambda gone: self._tell(gone) if gone else None,
        )

    async def verdicts(self, open_here: Sequence[bytes]) -> list[Verdict]:
        rows = await self._db.read(lambda con: con.fetch(VERDICTS, self._daemon, list(open_here)))
        return [_verdict(row) for row in rows]

    async def applied(self, writes: Sequence[bytes]) -> None:
        await self._db.write(lambda con: con.execute(APPLIED, self._daemon, list(writes)))

    async def unfinished(self) -> list[bytes]:
        rows = await self._db.read(lambda con: con.fetch(UNFINISHED, self._daemon))
        return [write for (write,) in rows]

    async def note_parts(self, parts: Sequence[WritePart]) -> None:
        for first in range(0, len(parts), PARTS_MAX):
            some = parts[first : first + PARTS_MAX]
            await self._db.write(partial(_note, daemon=self._daemon, parts=some))

    async def receipt(self, write: bytes) -> SharedReceipt | None:
        row = await self._db.read(lambda con: con.fetchrow(RECEIPT, write, self._daemon))
        return None if row is None else _receipt(write, row)

    async def forget(self, age_ms: int) -> int:
        """`FORGOTTEN_MAX` at most."""

        async def work(con: Connection) -> int:
            await con.execute(FORGET_APPS, APPS_MAX)
            return int(await con.fetchval(FORGET, self._now_ms(), age_ms, FORGOTTEN_MAX))

        return await self._db.write(work, is_durable=False)

    def _tell(self, _result: object) -> str | None:
        return self._notices({DECIDED})


async def _seal(
    con: Connection, write: bytes, stage: SealedStage, daemon: bytes, now_ms: int | None
) -> None:
    await con.execute(OPEN, now_ms, write)
    phase = await con.fetchval(SHARE, write)
    if phase == "open":
        await con.execute(ADD, now_ms, write, daemon, [stage.stage], *_columns([stage]))
    state = await con.fetchval(STATE, write, stage.stage)
    if state is None:
        raise Refused("STAGE_OVER", f"the write {write.hex()} is {phase}")
    if state == "dropped":
        raise Refused("STAGE_OVER", f"the stage {stage.stage.hex()} was dropped")


async def _drop(
    con: Connection, write: bytes, stage: bytes, daemon: bytes, now_ms: int | None
) -> bool:
    """A stage that is not known leaves a row: if it is sealed later, that is refused."""
    await con.execute(OPEN, now_ms, write)
    if (await con.fetchrow(LOCK, write))["phase"] == "open":
        await con.execute(DROP, now_ms, write, daemon, stage)
    return bool(await con.fetchval(STATE, write, stage) != "published")


async def _publish(
    con: Connection, wish: PublishWish, daemon: bytes, now_ms: int | None
) -> Published:
    write, here = wish.write, wish.here
    row = await con.fetchrow(LOCK, write)
    if row is None:
        if here.published is not None:
            return here.published
        await con.execute(OPEN, now_ms, write)
        row = await con.fetchrow(LOCK, write)
    if row["phase"] == "published":
        return Published("published", write, row["items"], row["heard_ms"])
    if row["phase"] == "open":
        named = [stage for stage in here.sealed if stage.stage in wish.stages]
        if named:
            ids = [stage.stage for stage in named]
            await con.execute(ADD, now_ms, write, daemon, ids, *_columns(named))
    found = await con.fetch(SEALED, write, list(wish.stages))
    queues = sorted({queue for stage in found for queue in stage["queues"]})
    if wish.app is not None and wish.version is not None:
        duplicate = await _judge_version(con, wish, queues, now_ms)
        if duplicate is not None:
            await con.execute(END, now_ms, write)
            return duplicate
    if row["phase"] == "aborted" or here.phase == "aborted":
        raise Refused("STAGE_OVER", f"the write {write.hex()} is aborted")
    missing = set(wish.stages) - {stage["stage"] for stage in found}
    if missing:
        raise _no_stage(min(missing))
    items = sum(stage["items"] for stage in found)
    return await _make_visible(con, wish, items, queues, now_ms)


async def _make_visible(
    con: Connection, wish: PublishWish, items: int, queues: list[str], now_ms: int | None
) -> Published:
    write = wish.write
    await con.execute(SHOW, write, list(wish.stages))
    await con.execute(BEGIN_PARTS, write)
    app = None if wish.app is None else to_text(wish.app)
    at_ms = await con.fetchval(PUBLISH, now_ms, write, items, queues, app, wish.version)
    if app is not None:
        await con.execute(NOTE_VERSION, app, wish.version, write)
    return Published("published", write, items, at_ms)


async def _judge_version(
    con: Connection, wish: PublishWish, queues: Sequence[str], now_ms: int | None
) -> Published | None:
    """The answer, if the version was published before. Until the end of the transaction nobody
    else can publish a version of this application."""
    assert wish.app is not None
    assert wish.version is not None
    last, holder = await _lock_version(con, wish, now_ms)
    if wish.version > last:
        return None
    if wish.version < last:
        return Published("duplicate", None)
    original = await con.fetchrow(LOOK, holder)
    if original is None:
        known = wish.here.last
        if known is None or known.write != holder or known.published is None:
            return Published("duplicate", None)
        return known.published._replace(outcome="duplicate")
    if set(queues) - set(original["queues"]):
        elsewhere = ", ".join(original["queues"])
        raise Refused(
            "BAD_REQUEST",
            f"version {wish.version} of {wish.app!r} was published to {elsewhere}: "
            "a write to another queue needs another application",
        )
    return Published("duplicate", holder, original["items"], original["heard_ms"])


async def _lock_version(
    con: Connection, wish: PublishWish, now_ms: int | None
) -> tuple[int, bytes]:
    """The last version, of whatever daemon, and its write. What this journal knows of an earlier
    time is known to all from now on."""
    assert wish.app is not None
    last = wish.here.last
    version, holder = (last.version, last.write) if last is not None else (-1, b"")
    row = await con.fetchrow(LOCK_VERSION, now_ms, to_text(wish.app), version, holder)
    return row["version"], row["write_id"]


async def _abort(
    con: Connection, write: bytes, items: int, daemon: bytes, now_ms: int | None
) -> Aborted:
    """Also a write that nobody has heard of: a straggler would wait for its end in vain."""
    await con.execute(OPEN, now_ms, write)
    row = await con.fetchrow(LOCK, write)
    if row["phase"] != "open":
        return Aborted(row["phase"], row["items"])
    elsewhere = await con.fetchval(STAGED, write, daemon)
    await con.execute(END, now_ms, write)
    await con.execute(DROPPED_ITEMS, write, items + elsewhere)
    return Aborted("aborted", items + elsewhere)


async def _expire(
    con: Connection, heard: Sequence[Unheard], ttl_ms: int, now_ms: int | None
) -> list[bytes]:
    writes, ages = [entry.write for entry in heard], [entry.age_ms for entry in heard]
    if heard:
        await con.execute(HEARD, now_ms, writes, ages)
        old = [entry.write for entry in heard if entry.age_ms >= ttl_ms and not entry.is_kept]
        await con.execute(OPEN_OLD, now_ms, old, ttl_ms)
    gone = [write for (write,) in await con.fetch(EXPIRE, now_ms, ttl_ms)]
    if gone:
        await con.execute(DROP_ALL, gone)
    return gone


async def _note(con: Connection, daemon: bytes, parts: Sequence[WritePart]) -> None:
    columns = [list(column) for column in zip(*parts, strict=True)]
    known = {write for (write,) in await con.fetch(NOTE, daemon, *columns)}
    # Of a write that was published elsewhere: items of it were moved here since then.
    new = [part for part in parts if part.write not in known]
    if new:
        await con.execute(BEGIN_MOVED, daemon, *(list(column) for column in zip(*new, strict=True)))


def _columns(stages: Sequence[SealedStage]) -> tuple[list[int], list[int], list[str]]:
    """An array of arrays must have a width: queues go as one text, and no name has a comma."""
    return (
        [stage.runs for stage in stages],
        [stage.items for stage in stages],
        [",".join(stage.queues) for stage in stages],
    )


def _verdict(row: Any) -> Verdict:
    return Verdict(
        write=row["write_id"],
        is_published=row["phase"] == "published",
        at_ms=row["heard_ms"],
        stages=tuple(row["stages"]),
        items=row["items"],
        queues=tuple(row["queues"]),
        app=None if row["app"] is None else from_text(row["app"]),
        version=row["version"],
    )


def _receipt(write: bytes, row: Any) -> SharedReceipt:
    return SharedReceipt(
        write=write,
        published_ms=row["heard_ms"],
        app=None if row["app"] is None else from_text(row["app"]),
        version=row["version"],
        queues=tuple(row["queues"]),
        accepted=row["items"],
        own=WritePart(write, *(row[f"own_{name}"] for name in PART)),
        others=WritePart(write, *(row[f"others_{name}"] for name in PART)),
    )


def _no_stage(stage: bytes) -> Refused:
    return Refused(
        "NOT_FOUND",
        f"no daemon of the fleet has sealed the stage {stage.hex()}, or it is over",
    )
