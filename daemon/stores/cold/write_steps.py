"""Decisions about Spark writes: the steps.

A write has one row, each of its sealed stages one, and each application one with its last version
(write_statements.py). Every change of a write locks its row first: seals share the lock, a decision
has it alone. So a stage is either there when its write is decided, or its seal is refused. A
decision is one transaction, however many stages there are. Whoever comes second (another publish,
an abort, the expiry) finds it and answers accordingly. The row of a version is locked after that of
the write, never before.

A journal may know more than this store: it may have published writes before it used this store, or
the store was lost or replaced by an old copy. Its word counts (`WriteView`): what it has published
stays published, its versions are taken up, and so are stages that it has sealed.

What it cannot do: forget a write that a daemon which is gone for good has not applied.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from actors.ports.writes import (
    DECIDED,
    VERDICTS_MAX,
    Aborted,
    Decided,
    Published,
    PublishWish,
    SealedStage,
    SharedReceipt,
    Unheard,
    Verdict,
    WritePart,
)
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.write_statements import (
    ADD,
    BEGIN_PARTS,
    DROP,
    DROP_ALL,
    DROP_STAGE,
    END,
    END_ALL,
    ENDED,
    EXPIRED,
    FORGET,
    FORGET_APP,
    FORGOTTEN,
    HEARD,
    KNOWN,
    KNOWN_PARTS,
    LOCK,
    LOCK_VERSION,
    LOOK,
    NOTE,
    NOTE_MOVED,
    NOTE_VERSION,
    OPEN,
    OPEN_OLD,
    OWN,
    PARTS,
    PUBLISH,
    PUBLISHED,
    QUIET_APPS,
    RECEIPT,
    SHARE,
    SHOW,
    STAGES,
    STATE,
    UNAPPLIED,
)
from forebay.errors import Refused

APPS_MAX: Final = 100_000
"""For so many applications the last version is known; the one that was quiet longest goes first."""
FORGOTTEN_MAX: Final = 200
"""Writes that one step forgets: others wait for it, and a write may have many stages."""
ASKED_MAX: Final = 1000
"""Writes that one statement looks for."""

Answer = Refused | None


# Stages.


async def seal(con: Connection, seals: Sequence[tuple[bytes, SealedStage]]) -> list[Answer]:
    """The refusal of each, if any."""
    phases = await _shared(con, {write for write, _ in seals})
    found = await con.fetch(KNOWN, list(phases), [stage.stage for _, stage in seals])
    states = {(write, stage): state for write, stage, state in found}
    new = [
        (write, stage)
        for write, stage in seals
        if phases[write] == "open" and (write, stage.stage) not in states
    ]
    await con.each(ADD, [_row(con, write, stage) for write, stage in new])
    states.update(((write, stage.stage), "sealed") for write, stage in new)
    return [
        _seal_answer(write, stage.stage, phases[write], states.get((write, stage.stage)))
        for write, stage in seals
    ]


async def _shared(con: Connection, writes: set[bytes]) -> dict[bytes, str]:
    """The phases of these writes, which nobody decides about before the end of the step."""
    phases = await _phases(con, sorted(writes))
    unknown = sorted(writes - phases.keys())
    if unknown:
        await con.each(OPEN, [(write,) for write in unknown])
        phases |= await _phases(con, unknown)
    return phases


async def _phases(con: Connection, writes: Sequence[bytes]) -> dict[bytes, str]:
    rows: Sequence[Any] = await con.fetch(SHARE, writes)
    return dict(rows)


def _seal_answer(write: bytes, stage: bytes, phase: str, state: str | None) -> Answer:
    if state is None:
        return Refused("STAGE_OVER", f"the write {write.hex()} is {phase}")
    if state == "dropped":
        return Refused("STAGE_OVER", f"the stage {stage.hex()} was dropped")
    return None


async def drop(con: Connection, write: bytes, stage: bytes) -> bool:
    """A stage that is not known leaves a row: if it is sealed later, that is refused."""
    phase, _, _ = await _locked(con, write)
    if phase == "open":
        await con.execute(DROP, write, stage, con.daemon)
    found = await con.first(STATE, write, stage)
    return found is None or found[0] != "published"


async def _locked(con: Connection, write: bytes) -> Sequence[Any]:
    """Phase, items and time of a write, which is open if nobody has heard of it."""
    row = await con.first(LOCK, write)
    if row is None:
        await con.execute(OPEN, write)
        row = await con.first(LOCK, write)
    assert row is not None
    return row


def _row(con: Connection, write: bytes, stage: SealedStage) -> tuple[object, ...]:
    queues = ",".join(stage.queues)
    return (write, stage.stage, con.daemon, stage.runs, stage.items, queues)


def _names(queues: str) -> tuple[str, ...]:
    """No name has a comma."""
    return tuple(queues.split(",")) if queues else ()


# Decisions.


async def publish(con: Connection, wish: PublishWish) -> Decided:
    write, here = wish.write, wish.here
    row = await con.first(LOCK, write)
    if here.published is not None and (row is None or row[0] != "published"):
        return Decided(here.published, None)
    phase, items, heard_ms = row or await _locked(con, write)
    if phase == "published":
        (verdict,) = await _told(con, await con.fetch(ENDED, [write]))
        return Decided(Published("published", write, items, heard_ms), verdict)
    stages = await _sealed(con, wish, is_open=phase == "open")
    named = {stage: stages[stage] for stage in {*wish.stages} if stage in stages}
    queues = sorted({queue for _, _, queues in named.values() for queue in queues})
    if wish.app is not None and wish.version is not None:
        duplicate = await _judge_version(con, wish, wish.app, wish.version, queues)
        if duplicate is not None:
            if phase == "open":
                heard_ms = await _end(con, write, 0)
            return Decided(duplicate, Verdict(write, False, heard_ms))
    if phase == "aborted" or here.phase == "aborted":
        raise Refused("STAGE_OVER", f"the write {write.hex()} is aborted")
    missing = {*wish.stages} - named.keys()
    if missing:
        raise _not_sealed(min(missing))
    await con.each(DROP_STAGE, [(write, stage) for stage in stages if stage not in named])
    await con.execute(SHOW, write)
    await con.execute(BEGIN_PARTS, write)
    items = sum(items for _, items, _ in named.values())
    published_ms = await _noted(con, wish, items, queues)
    own = {stage: items for stage, (daemon, items, _) in named.items() if daemon == con.daemon}
    verdict = _verdict(write, published_ms, own, queues, wish.app, wish.version)
    return Decided(Published("published", write, items, published_ms), verdict)


async def _sealed(
    con: Connection, wish: PublishWish, *, is_open: bool
) -> dict[bytes, tuple[bytes, int, tuple[str, ...]]]:
    """Daemon, items and queues of each sealed stage. Those that this journal has sealed and the
    store does not know are taken up."""
    rows = await con.fetch(STAGES, wish.write)
    found = {
        stage: (daemon, items, _names(queues))
        for stage, daemon, state, items, queues in rows
        if state == "sealed"
    }
    known = {stage for stage, *_ in rows}
    if is_open:
        new = [
            stage
            for stage in wish.here.sealed
            if stage.stage not in known and stage.stage in {*wish.stages}
        ]
        await con.each(ADD, [_row(con, wish.write, stage) for stage in new])
        found |= {stage.stage: (con.daemon, stage.items, stage.queues) for stage in new}
    return found


async def _noted(con: Connection, wish: PublishWish, items: int, queues: Sequence[str]) -> int:
    """When it was published."""
    values = (items, ",".join(queues), wish.app, wish.version)
    row = await con.first(PUBLISH, wish.write, *values)
    assert row is not None
    if wish.app is not None:
        await con.execute(NOTE_VERSION, wish.app, wish.version, wish.write)
    con.wake(DECIDED)
    return int(row[0])


async def _judge_version(
    con: Connection, wish: PublishWish, app: str, version: int, queues: Collection[str]
) -> Published | None:
    """The answer, if the version was published before. Until the end of the step nobody else can
    publish a version of this application."""
    known = wish.here.last
    held = (known.version, known.write) if known is not None else (-1, b"")
    # What only this journal knows, all know from now on.
    row = await con.first(LOCK_VERSION, app, *held)
    assert row is not None
    last, holder = row
    if version > last:
        return None
    if version < last:
        return Published("duplicate", None)
    original = await con.first(LOOK, holder)
    if original is None:
        if known is None or known.write != holder or known.published is None:
            return Published("duplicate", None)
        return known.published._replace(outcome="duplicate")
    items, heard_ms, its_queues = original
    published_to = _names(its_queues)
    if published_to and set(queues) - {*published_to}:
        elsewhere = ", ".join(published_to)
        raise Refused(
            "BAD_REQUEST",
            f"version {version} of {app!r} was published to {elsewhere}: "
            "a write to another queue needs another application",
        )
    return Published("duplicate", holder, items, heard_ms)


async def _end(con: Connection, write: bytes, items: int) -> int:
    """Drops an open write; when."""
    row = await con.first(END, write, items)
    assert row is not None
    await con.execute(DROP_ALL, [write])
    con.wake(DECIDED)
    return int(row[0])


async def abort(con: Connection, write: bytes, items: int) -> Aborted:
    """Also a write that nobody has heard of: a straggler would wait for its end in vain."""
    phase, known_items, _ = await _locked(con, write)
    if phase != "open":
        return Aborted(phase, known_items)
    elsewhere = sum(
        items
        for _, daemon, state, items, _ in await con.fetch(STAGES, write)
        if state == "sealed" and daemon != con.daemon
    )
    await _end(con, write, items + elsewhere)
    return Aborted("aborted", items + elsewhere)


async def expire(con: Connection, heard: Sequence[Unheard], ttl_ms: int) -> list[bytes]:
    # In one order everywhere: others lock the same rows.
    ages = sorted(heard)
    await con.each(HEARD, [(entry.write, entry.age_ms) for entry in ages])
    old = [entry.write for entry in ages if entry.age_ms >= ttl_ms and not entry.is_kept]
    await con.each(OPEN_OLD, [(write, ttl_ms) for write in old])
    gone = [write for (write,) in await con.fetch(EXPIRED, ttl_ms)]
    if gone:
        await con.execute(END_ALL, gone)
        await con.execute(DROP_ALL, gone)
        con.wake(DECIDED)
    return gone


# Following.


async def verdicts(con: Connection, open_here: Sequence[bytes]) -> list[Verdict]:
    unapplied = [write for (write,) in await con.fetch(UNAPPLIED, con.daemon)]
    asked = list(dict.fromkeys([*unapplied, *open_here]))
    rows: list[Sequence[Any]] = []
    while asked and len(rows) < VERDICTS_MAX:
        some, asked = asked[:ASKED_MAX], asked[ASKED_MAX:]
        rows += await con.fetch(ENDED, some)
    return await _told(con, rows[:VERDICTS_MAX])


async def _told(con: Connection, rows: Sequence[Sequence[Any]]) -> list[Verdict]:
    """Decisions, as far as they concern this daemon."""
    own: dict[bytes, dict[bytes, int]] = {
        write: {} for write, phase, *_ in rows if phase == "published"
    }
    if own:
        for write, stage, items in await con.fetch(OWN, con.daemon, list(own)):
            own[write][stage] = items
    return [
        _verdict(write, heard_ms, own[write], _names(queues), app, version)
        if write in own
        else Verdict(write, False, heard_ms)
        for write, _, heard_ms, queues, app, version in rows
    ]


def _verdict(
    write: bytes,
    published_ms: int,
    own: Mapping[bytes, int],
    queues: Sequence[str],
    app: str | None,
    version: int | None,
) -> Verdict:
    """`own`: the items of each published stage of this daemon."""
    stages, items = tuple(sorted(own)), sum(own.values())
    return Verdict(write, True, published_ms, stages, items, tuple(queues), app, version)


# Receipts, and the end.


async def note(con: Connection, parts: Sequence[WritePart]) -> None:
    writes = [part.write for part in parts]
    known = {write for (write,) in await con.fetch(KNOWN_PARTS, con.daemon, writes)}
    ordered = sorted(parts)
    await con.each(NOTE, [(con.daemon, *part) for part in ordered if part.write in known])
    # Of a write that was published elsewhere: items of it were moved here since then. One that is
    # being forgotten must not come back.
    moved = [part for part in ordered if part.write not in known]
    if moved:
        asked = [part.write for part in moved]
        there = {write for (write,) in await con.fetch(PUBLISHED, asked)}
        rows = [(con.daemon, *part) for part in moved if part.write in there]
        await con.each(NOTE_MOVED, rows)


async def receipt(con: Connection, write: bytes) -> SharedReceipt | None:
    row = await con.first(RECEIPT, write)
    if row is None:
        return None
    heard_ms, app, version, queues, items = row
    parts = await con.fetch(PARTS, write)
    return SharedReceipt(
        write=write,
        published_ms=heard_ms,
        app=app,
        version=version,
        queues=_names(queues),
        accepted=items,
        own=_sum(write, [counts for daemon, *counts in parts if daemon == con.daemon]),
        others=_sum(write, [counts for daemon, *counts in parts if daemon != con.daemon]),
    )


def _sum(write: bytes, parts: Sequence[Sequence[int]]) -> WritePart:
    delivered, dropped, deleted, lost = (sum(part[n] for part in parts) for n in range(4))
    return WritePart(write, delivered, dropped, deleted, lost)


async def forget(con: Connection, age_ms: int) -> int:
    await con.each(FORGET_APP, await con.fetch(QUIET_APPS, APPS_MAX))
    gone = [write for (write,) in await con.fetch(FORGOTTEN, age_ms, FORGOTTEN_MAX)]
    if gone:
        for statement in FORGET:
            await con.execute(statement, gone)
    return len(gone)


def _not_sealed(stage: bytes) -> Refused:
    return Refused(
        "NOT_FOUND", f"no daemon has sealed the stage {stage.hex()}, or the stage is over"
    )
