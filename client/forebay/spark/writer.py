"""`df.write.format("forebay")`: a batch write, seen whole or not at all.

Spark makes the writer once for each `save()`, on the driver, and sends it to every attempt of every
task, and to commit or abort. So the write's id is made with it, and a second `save()` is another
write. With `txnAppId` and `txnVersion` a write whose version was published before changes nothing
and succeeds. If commit fails, Spark calls abort; a write that was published by then stays.

The functions below serve stream_writer.py as well. Each attempt of a task stages its rows under a
stage id of its own, with the daemon of its host. The driver publishes exactly the stages that Spark
names as winners, in one step. The daemon drops the stages of attempts that lost and of jobs that
failed.

Rows are durable when `stage_rows` returns, and visible when `publish` returns. A task or driver
that is killed leaves invisible stages, which expire (`spool.stage_ttl`).

Daemons that share a cold store can publish the stages of each other. A daemon without one publishes
only its own: if tasks staged with other daemons, `WriteFailed` names the hosts that they ran on.
"""

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

import forebay.spark.receipts as receipts
from forebay.client import connect
from forebay.errors import ForebayError, Refused, Unreachable
from forebay.spark.batches import put_together, runs_of
from forebay.spark.options import OptionError, check_queue
from forebay.spark.plan import SinkPlan, needs_labels, with_labels
from forebay.writes import WRITE_HEADER, Published, Stage, new_write_id

log = logging.getLogger("forebay.spark")

ABORT_TIMEOUT_S: Final = 10.0
"""The job has failed already: cleaning up must not make it wait long."""


class WriteFailed(ForebayError):
    """The write did not become visible, or its outcome is unknown."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The stage of a task; with no runs there is nothing to publish."""

    write: bytes
    stage: bytes
    runs: int
    items: int
    host: str
    app: str | None = None
    version: int | None = None


class ForebayWriter(DataSourceArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._write = new_write_id()

    def write(self, iterator: Iterator[Any]) -> Staged:
        """In a task: stages its rows."""
        return stage_rows(self._plan, self._write, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: publishes what the winners have staged."""
        options = self._plan.options
        staged = all_staged(messages)
        transaction = None
        if options.app is not None and options.version is not None:
            transaction = (options.app, options.version)
        published = publish(self._plan, self._write, staged, transaction)
        receipts.tell(options, self._write, published)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: drops what was staged."""
        receipts.log_to_stderr()
        drop(self._plan, self._write)


def ask_daemon(plan: SinkPlan, *, wait_s: float) -> SinkPlan:
    """Asks the daemon for the queue, and for the labels of priorities if the plan has some, before
    data moves. Returns the plan for the tasks."""
    options = plan.options
    try:
        with connect(options.socket, options.timeout_s, wait=wait_s) as client:
            check_queue(client, options.queue)
            return with_labels(plan, client.priorities()) if needs_labels(plan) else plan
    except Unreachable as problem:
        raise OptionError(
            "socket", options.socket, f"no daemon answers on {socket.gethostname()}: {problem}"
        ) from problem


def stage_rows(
    plan: SinkPlan,
    write: bytes,
    batches: Iterator[Any],
    transaction: tuple[str, int] | None = None,
) -> Staged:
    """Stages all rows of a task, in order. A task without rows does not connect."""
    options = plan.options
    app, version = transaction or (options.app, options.version)
    host = socket.gethostname()
    full = put_together(batches, options.run_items, options.run_bytes)
    first = next(full, None)
    if first is None:
        return Staged(write, b"", 0, 0, host, app, version)
    headers = {**options.headers, WRITE_HEADER: write.hex()}
    now_ms = time.time_ns() // 1_000_000
    with connect(options.socket, options.timeout_s, wait=options.timeout_s) as client:
        stage = client.stage(write)
        most = client.max_run_bytes
        try:
            for batch in chain([first], full):
                for run in runs_of(batch, plan, headers, now_ms=now_ms, max_run_bytes=most):
                    stage.submit(run)
            sealed = stage.seal()
        except Exception:
            _drop_stage(plan, stage)
            raise
    return Staged(write, sealed.stage, sealed.runs, sealed.items, host, app, version)


def _drop_stage(plan: SinkPlan, stage: Stage) -> None:
    """Drops the stage of an attempt that failed, so that it takes no room until the write ends."""
    if not stage.runs:
        return
    try:
        with connect(plan.options.socket, ABORT_TIMEOUT_S) as client:
            client.drop_stage(stage.write, stage.id)
    except ForebayError as problem:
        log.warning("stage %s is not dropped and ends with its write: %s", stage.id.hex(), problem)


def publish(
    plan: SinkPlan, write: bytes, messages: Sequence[Staged], transaction: tuple[str, int] | None
) -> Published:
    """Makes these stages visible; succeeds if the transaction was published before."""
    timeout_s = plan.options.commit_timeout_s
    app, version = transaction or (None, None)
    stages = [message.stage for message in messages if message.runs]
    try:
        with connect(plan.options.socket, timeout_s, wait=timeout_s) as client:
            return client.publish(write, stages, app=app, version=version, timeout=timeout_s)
    except Refused as problem:
        raise WriteFailed(_why_refused(write, messages, problem)) from problem
    except Unreachable as problem:
        raise WriteFailed(
            f"forebay: it is not known whether write {write.hex()} is visible: {problem}. "
            f"`forebay receipt {write.hex()}` tells once the daemon answers; a stream or a write "
            "with txnAppId and txnVersion can be repeated"
        ) from problem


def drop(plan: SinkPlan, write: bytes) -> None:
    """Drops the stages of a write, unless it is published. Never hides the error that led here."""
    try:
        with connect(plan.options.socket, ABORT_TIMEOUT_S) as client:
            aborted = client.abort_write(write)
    except ForebayError as problem:
        log.warning("write %s is not dropped and will expire: %s", write.hex(), problem)
        return
    if aborted.outcome == "published":
        log.warning(
            "write %s is published: its %d items stay, although the job failed",
            write.hex(),
            aborted.items,
        )
    else:
        log.info("write %s is dropped: %d staged items", write.hex(), aborted.items)


def all_staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """The messages of a commit; WriteFailed if a task sent none."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if len(staged) != len(messages):
        missing = len(messages) - len(staged)
        raise WriteFailed(f"forebay: {missing} of {len(messages)} tasks did not stage their rows")
    return staged


def _why_refused(write: bytes, messages: Sequence[Staged], problem: Refused) -> str:
    hosts = ", ".join(sorted({message.host for message in messages if message.runs}))
    if problem.code != "NOT_FOUND":
        return f"forebay: write {write.hex()} is not published: {problem}"
    return (
        f"forebay: write {write.hex()} is not published: the daemon that the driver reaches on "
        f"{socket.gethostname()} does not have all that was staged ({problem.text}). The tasks "
        f"ran on {hosts}, and staged with the daemons there. Either those are other daemons than "
        "the driver's, which cannot publish for them unless all of them share a PostgreSQL as "
        "their cold store, or the write had expired"
    )
