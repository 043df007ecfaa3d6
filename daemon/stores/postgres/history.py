"""History in PostgreSQL: rows of items that are finished, until they are forgotten by age.

What is kept, and what is cut out of large runs, is as in daemon/stores/sqlite/history.py.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from actors.model.finished import Keep
from actors.model.slices import HeldBy
from daemon.stores.cold.history import CUT_BYTES_MIN, Cutter
from daemon.stores.cold.rows import BadRow, pack_bits
from daemon.stores.cold.text import to_text
from daemon.stores.postgres.connection import Connection
from daemon.stores.postgres.rows import NOW, insert_bodies, read_bodies


class Ended(NamedTuple):
    """Items of a row of `runs` that are finished."""

    n: int
    body_id: bytes
    bits: int
    size: int
    outcome: Literal["delivered", "deleted"]
    keep: Keep
    holder: HeldBy | None = None
    result: str = ""


async def note_ended(con: Connection, ended: Sequence[Ended], now_ms: int | None) -> None:
    """Rows of `runs`, or parts of them. Before the rows are changed, and their bodies dropped."""
    if not ended:
        return
    parts, cut = await _cut(con, ended)
    if cut:
        await insert_bodies(con, cut)
    await con.execute(
        NOTE_ENDED,
        now_ms,
        [end.n for end in ended],
        [end.outcome for end in ended],
        [body_id for body_id, _, _ in parts],
        [size for _, size, _ in parts],
        [bits.bit_count() for _, _, bits in parts],
        [pack_bits(bits) for _, _, bits in parts],
        *(list(column) for column in zip(*(_locked(end.holder) for end in ended), strict=True)),
        [to_text(end.result) or None for end in ended],
    )


def _locked(holder: HeldBy | None) -> tuple[str | None, int | None]:
    return (None, None) if holder is None else (to_text(holder.by), holder.since_ms)


async def _cut(
    con: Connection, ended: Sequence[Ended]
) -> tuple[list[tuple[bytes, int, int]], dict[bytes, bytes]]:
    """Body, size and bits of each, as it is kept; and the bodies that were made for it."""
    large = [end for end in ended if end.keep == "failures" and end.size >= CUT_BYTES_MIN]
    bodies = await read_bodies(con, (end.body_id for end in large))
    cutter = Cutter()
    parts: list[tuple[bytes, int, int]] = []
    cut: dict[bytes, bytes] = {}
    for end in ended:
        part = (end.body_id, end.size, end.bits)
        if end.keep == "failures" and end.size >= CUT_BYTES_MIN:
            with suppress(BadRow):
                head, data, bits = cutter.part(*bodies.get(end.body_id), end.bits)
                if head.run_id != end.body_id:
                    part, cut[head.run_id] = (head.run_id, len(data), bits), data
        parts.append(part)
    return parts, cut


async def note_claimed(con: Connection, consumer: int, keep: Keep, now_ms: int | None) -> None:
    """The rows of a claim that is acknowledged, however many, in one statement."""
    await con.execute(NOTE_CLAIMED if keep == "all" else NOTE_CLAIMED_FAILURES, now_ms, consumer)


_COLUMNS: Final = """body_id, queue, flow, action, priority, count, size, attempt, outcome,
    created_at, finished_at, bits, error_history, locked_by, locked_at, result,
    job_id"""
_OF_RUNS: Final = "runs.queue, runs.flow, runs.action, runs.priority"
NOTE_ENDED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT ended.body_id, {_OF_RUNS}, ended.count, ended.size,
        runs.attempt + (ended.outcome = 'delivered')::integer, ended.outcome, runs.created_at,
        {NOW}, ended.bits, runs.error_history, ended.locked_by, ended.locked_at, ended.result,
        runs.job_id
    FROM unnest(
        $2::bigint[], $3::text[], $4::bytea[], $5::integer[], $6::integer[], $7::bytea[],
        $8::text[], $9::bigint[], $10::text[]
    ) WITH ORDINALITY AS ended (
        n, outcome, body_id, size, count, bits, locked_by, locked_at, result, place
    )
    JOIN runs ON runs.n = ended.n ORDER BY ended.place"""
NOTE_CLAIMED: Final = f"""INSERT INTO history ({_COLUMNS})
    SELECT body_id, {_OF_RUNS}, count, size, attempt + 1, 'delivered', created_at, {NOW},
        bits, error_history, (SELECT name FROM consumers WHERE n = $2), NULL, NULL,
        job_id
    FROM runs WHERE state = 'CLAIMED' AND consumer = $2"""
NOTE_CLAIMED_FAILURES: Final = f"{NOTE_CLAIMED} AND (attempt > 0 OR error_history <> '[]')"
