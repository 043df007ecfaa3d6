"""`spark.readStream.format("forebay")`: a queue as a stream, read in claims.

A claim is a numbered, fixed set of items that belongs to this consumer until it is acknowledged
(docs/protocol.md, "Claims"). An offset of the stream is the number of a claim, and a micro-batch is
one claim: Spark may read it any number of times, before and after a crash of either side, and reads
the same items. Its rows are split among several tasks.

*Acknowledgement*: Spark asks for the next offset only when the micro-batch that ends at the current
one is in its commit log. So `latestOffset(start)` acknowledges `start`, durably, and `commit`,
which comes later, has nothing left to do. The last micro-batch before a query is stopped is
acknowledged when the query is started again; with `availableNow` it is acknowledged before the
query ends.

*Exactly once* depends on the sink: Spark's file sinks commit by batch id and write everything once.

The reader does not know which query it reads for. The option `consumer` names it, and a checkpoint
of another consumer is an error. Two queries need two names. `availableNow` reads as many items as
waited when it began, the most urgent first, even if others have arrived since.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from forebay.client import Client, connect
from forebay.errors import ForebayError, Refused
from forebay.fetch_frames import Fetched
from forebay.limits import CLAIM_ITEMS_MAX, FETCH_ROWS_MAX
from forebay.spark.columns import ITEM_SCHEMA, chosen
from forebay.spark.options import check_queue
from forebay.spark.source_options import stream_options
from forebay.streams import Claim, StreamStatus

PAGE_BYTES: Final = 1024 * 1024
"""Of runs, in a FETCHED. An item of 300 bytes costs the daemon 0.09 µs and the task 0.27; with
4 MiB it is 0.19 and 0.44: memory that large is fresh each time, and in no cache."""

Offset = dict[str, Any]
"""`{"claim": n}`: everything up to claim n. 0: nothing yet."""


@dataclass(frozen=True)
class ClaimPart(InputPartition):
    """Rows `first` to `last` (exclusive) of a claim: what one task reads."""

    claim: int
    first: int
    last: int


@dataclass(slots=True)
class _Goal:
    """What a query with `availableNow` still has to read."""

    opened: int | None
    """The claim that was open when it began: it is read, and was counted before."""
    items: int


class ForebayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = stream_options(given)
        self._schema = chosen(ITEM_SCHEMA, schema.fieldNames())
        self._client: Client | None = None
        self._claim: Claim | None = None
        """The last one that was asked for."""
        self._goal: _Goal | None = None

    def initialOffset(self) -> Offset:
        return {"claim": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.items)

    def prepareForTriggerAvailableNow(self) -> None:
        status = self._status()
        self._goal = _Goal(status.claim, status.backlog)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Acknowledges `start`; the number of the next claim, or `start` if nothing is due."""
        after = int(start["claim"])
        items = items_within(limit)
        goal = self._goal
        if goal is not None and goal.opened != after + 1:
            items = min(items, goal.items)
        if items == 0:
            self._finish(after)
            return start
        claim = self._claim = self._ask_claim(after, items)
        if claim.number is None:
            return start
        if goal is not None and goal.opened != claim.number:
            goal.items = max(goal.items - claim.items, 0)
        return {"claim": claim.number}

    def reportLatestOffset(self) -> Offset | None:
        """The last claim, and how many items wait behind it: for the query's progress, where
        listener.py finds it."""
        claim = self._claim
        if claim is None:
            return None
        return {
            "queue": self._options.queue,
            "consumer": self._options.consumer,
            "claim": claim.number or 0,
            "backlog": claim.backlog,
        }

    def partitions(self, start: Offset, end: Offset) -> list[ClaimPart]:
        if start == end:
            return []
        number = int(end["claim"])
        claim = self._claim
        if claim is not None and claim.number == number:
            rows = claim.rows
        else:  # The query was started again, and repeats the claim that it had begun.
            status = self._status()
            if status.claim != number:
                raise ForebayError(self._explain(number - 1, status))
            rows = status.rows
        return deal(number, rows, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task. A daemon that is just being started again is waited for."""
        # The driver does without: 30 ms less before a query can begin.
        from forebay.spark.rows import to_batches

        assert isinstance(partition, ClaimPart)
        options = self._options
        at: int | None = partition.first
        with connect(options.socket, options.timeout_s, wait=options.timeout_s) as client:
            while at is not None and at < partition.last:
                rows = min(partition.last - at, FETCH_ROWS_MAX)
                fetched = self._fetch(client, partition.claim, at, rows)
                # A row that was set aside as corrupt leaves a gap in the numbers: as many rows as
                # were asked for then reach into the next task's part.
                mine = [row for row in fetched.rows if row.number < partition.last]
                yield from to_batches(mine, self._schema)
                at = fetched.next

    def _fetch(self, client: Client, claim: int, first: int, rows: int) -> Fetched:
        queue, consumer = self._options.queue, self._options.consumer
        try:
            return client.fetch(
                queue, consumer, claim, first=first, rows=rows, bytes_max=PAGE_BYTES
            )
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise
            raise ForebayError(
                f"another query reads queue {queue!r} as consumer {consumer!r}, and has "
                f"acknowledged claim {claim} while this one was reading it; or the consumer was "
                "dropped. Give each query a name of its own as option 'consumer'"
            ) from refused

    def commit(self, end: Offset) -> None:
        """Nothing: `latestOffset` was asked for what comes after `end` before, and has
        acknowledged it."""

    def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(ForebayError):
                client.close()

    def _ask_claim(self, after: int, items: int) -> Claim:
        options = self._options
        try:
            return self._connected().claim(
                options.queue, options.consumer, after=after, items=items
            )
        except Refused as refused:
            if refused.code != "BAD_REQUEST":
                raise
            raise ForebayError(self._explain(after, self._status())) from refused

    def _finish(self, after: int) -> None:
        """`after` is done, and nothing more is wanted."""
        status = self._status()
        if status.claim == after:
            self._ask_claim(after, 0)
        elif status.acknowledged != after:
            raise ForebayError(self._explain(after, status))

    def _status(self) -> StreamStatus:
        return self._connected().stream_status(self._options.queue, self._options.consumer)

    def _explain(self, after: int, status: StreamStatus) -> str:
        return explain(self._options.queue, self._options.consumer, after, status)

    def _connected(self) -> Client:
        if self._client is None:
            client = connect(self._options.socket, self._options.timeout_s)
            try:
                check_queue(client, self._options.queue)
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._client


def items_within(limit: ReadLimit) -> int:
    """How many items a claim may have."""
    match limit:
        case ReadMaxRows():
            return min(limit.max_rows, CLAIM_ITEMS_MAX)
        case ReadAllAvailable():
            return CLAIM_ITEMS_MAX
        case _:
            raise ValueError(f"a queue can't be read by {type(limit).__name__}")


def deal(claim: int, rows: int, partitions: int) -> list[ClaimPart]:
    """A claim's rows in so many parts, or as many as it has rows, of nearly equal length."""
    parts = min(partitions, rows)
    cuts = [rows * part // parts for part in range(parts + 1)] if parts else []
    return [ClaimPart(claim, first, last) for first, last in pairwise(cuts)]


def explain(queue: str, consumer: str, after: int, status: StreamStatus) -> str:
    """Why a checkpoint and a consumer do not fit together, and what to do."""
    if after < status.acknowledged:
        gap = f"is behind: its claims up to {status.acknowledged} were acknowledged and are gone"
    else:
        gap = f"is ahead: only claims up to {status.acknowledged} were acknowledged"
    return (
        f"the checkpoint of this query has read consumer {consumer!r} of queue {queue!r} up to "
        f"claim {after}, and {gap}. It is a new or an old checkpoint, or another query reads with "
        "the same consumer. Use the checkpoint that belongs to this consumer, or another name as "
        "`consumer`; to begin anew with this name, drop the consumer "
        f"(client.stream_drop({queue!r}, {consumer!r})): items that it has claimed and not "
        "acknowledged are then read again"
    )
