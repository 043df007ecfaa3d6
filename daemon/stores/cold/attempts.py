"""Attempts of each queue: one row per queue and daemon, which its own daemon writes.

`processing` is JSON: the sum and the longest of the durations in seconds, and pairs of a bucket
(actors/model/latencies.py) and the items in it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from actors.model.attempts import Attempts
from actors.model.latencies import BUCKETS, NOTHING, Distribution
from actors.ports.tiers import StoredAttempts
from daemon.stores.cold.connection import Connection
from daemon.stores.cold.statement import Statement


async def read(con: Connection, queue: str) -> StoredAttempts:
    own = others = Attempts()
    for is_own, *columns in await con.fetch(SELECT, queue, con.daemon):
        if is_own:
            own += _attempts(*columns)
        else:
            others += _attempts(*columns)
    return StoredAttempts(own, others)


async def read_own(con: Connection, queues: Sequence[str]) -> dict[str, Attempts]:
    rows = await con.fetch(SELECT_OWN, list(queues), con.daemon)
    return {queue: _attempts(*columns) for queue, *columns in rows}


async def note(con: Connection, attempts: Mapping[str, Attempts]) -> None:
    await con.each(
        NOTE,
        [
            (queue, con.daemon, one.application, one.business, _packed(one.processing))
            for queue, one in sorted(attempts.items())
        ],
    )


def _attempts(application: int, business: int, processing: bytes | str) -> Attempts:
    return Attempts(application, business, _unpacked(processing))


def _packed(processing: Distribution) -> str:
    buckets = [[at, items] for at, items in enumerate(processing.counts) if items]
    return json.dumps([processing.sum_s, processing.max_s, buckets])


def _unpacked(processing: bytes | str) -> Distribution:
    """Nothing if it makes no sense: these are figures to look at."""
    try:
        sum_s, max_s, buckets = json.loads(processing)
        counts = [0] * BUCKETS
        for at, items in buckets:
            counts[at] += int(items)
        return Distribution(tuple(counts), float(sum_s), float(max_s))
    except (ValueError, TypeError, IndexError):
        return NOTHING


_FIGURES: Final = "application, business, :raw(processing)"
SELECT: Final = Statement(f"SELECT daemon = $2, {_FIGURES} FROM attempts WHERE queue = $1")
SELECT_OWN: Final = Statement(f"""SELECT queue, {_FIGURES} FROM attempts
    WHERE queue = ANY ($1) AND daemon = $2""")
NOTE: Final = Statement("""INSERT INTO attempts (queue, daemon, application, business, processing)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (queue, daemon) DO UPDATE SET application = excluded.application,
        business = excluded.business, processing = excluded.processing""")
