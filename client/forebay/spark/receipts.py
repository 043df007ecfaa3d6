"""Receipts for Spark: the last write of this application, and the outcomes of its items.

    df.write.format("forebay").option("queue", "crm").mode("append").save()
    receipt = forebay.spark.last_receipt(spark)
    print(receipt.write.hex(), receipt.accepted, receipt.pending)
    receipt = receipt.wait(timeout=600)

Spark commits a write in a separate Python process, never in the user's, which with Spark Connect is
not even on the same machine. So commit leaves a note in the directory that Spark keeps for this
application on the driver's host (and removes with it). `last_receipt` reads the note through the
data source: `spark.read.format("forebay").option("state", "receipt")` is also planned in such a
process on the driver, and asks the daemon there. A receipt's `wait()` asks in the same way, each
time with a small Spark job: at most one per second.

A write whose transaction was published before also leaves a note: the receipt is then that of the
write that was published with exactly this version, or None if that write is unknown.

The note does not tell the sessions of one application apart. With Spark Connect others may have
written in the meantime; the write's id is in the driver's log, and `receipt(spark, id)` asks for
it.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.client import TIMEOUT_S, connect
from forebay.receipts import Receipt, Receipts, asked_by
from forebay.spark.options import OptionError, SinkOptions, check_names, read_timeout
from forebay.writes import Published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = logging.getLogger("forebay.spark")

STATE: Final = "receipt"
"""Of the option `state` of a read."""
RECEIPT_DDL: Final = (
    "write BINARY, published_ms BIGINT, app STRING, version BIGINT, queues ARRAY<STRING>, "
    "accepted BIGINT, delivered BIGINT, dead BIGINT, dropped BIGINT, deleted BIGINT, "
    "lost BIGINT, pending BIGINT, updated BIGINT, ignored BIGINT, conflict BIGINT, "
    "last STRUCT<outcome: STRING, queue: STRING, app: STRING, version: BIGINT, socket: STRING>"
)
READ_OPTIONS: Final = ("state", "write", "socket", "timeout")

_PLACE: Final = "SPARK_LOCAL_DIRS"
"""Spark tells its Python processes where the application's own directories are."""
_NOTE: Final = "forebay-last-write.json"
_LAST: Final = ("outcome", "queue", "app", "version", "socket")
"""What the note says in the column `last`."""

Outcome = Literal["published", "duplicate"]


@dataclass(frozen=True, slots=True)
class LastWrite:
    """How the last write of this application ended: where to, and the transaction of its options,
    which a stream has none of."""

    outcome: Outcome
    queue: str
    app: str | None
    version: int | None
    socket: str | None
    """Of the daemon on the driver's host that has published it; None: as found."""
    receipt: Receipt | None
    """None: a duplicate, of a write that is not known any more."""


def last_receipt(spark: "SparkSession") -> Receipt | None:
    """The receipt, as of now, of the last write that this application has published."""
    last = last_write(spark)
    return None if last is None else last.receipt


def last_write(spark: "SparkSession") -> LastWrite | None:
    """What the last write of this application was, and its receipt as of now."""
    row = _row(spark.read.format("forebay").option("state", STATE).load())
    if row is None:
        return None
    last = row["last"].asDict()
    return LastWrite(**last, receipt=_receipt(row, SparkReceipts(spark, last["socket"])))


def receipt(spark: "SparkSession", write: bytes | str, socket: str | None = None) -> Receipt:
    """The receipt of this write, from the daemon that the driver reaches."""
    return SparkReceipts(spark, socket).receipt(write)


class SparkReceipts(Receipts):
    """Asks for receipts through Spark, in place of a client: where the driver is on another machine
    than this process, only Spark reaches the daemon."""

    def __init__(self, spark: "SparkSession", socket: str | None) -> None:
        self._spark = spark
        self._socket = socket

    def receipt(self, write: bytes | str) -> Receipt:
        text = write if isinstance(write, str) else write.hex()
        reading = self._spark.read.format("forebay").option("state", STATE).option("write", text)
        if self._socket is not None:
            reading = reading.option("socket", self._socket)
        row = _row(reading.load())
        found = None if row is None else _receipt(row, self)
        # The daemon has refused a write that it does not know.
        assert found is not None
        return found


def tell(options: SinkOptions, write: bytes, published: Published) -> None:
    """On the driver, after publishing: says it in the log, and leaves the note."""
    log_to_stderr()
    if published.outcome == "duplicate":
        log.info(
            "write %s to queue %s was published before: nothing became visible twice",
            write.hex(),
            options.queue,
        )
    else:
        log.info(
            "write %s to queue %s is published: %d items",
            write.hex(),
            options.queue,
            published.items,
        )
    note = {
        "write": None if published.write is None else published.write.hex(),
        "socket": options.socket,
        "outcome": published.outcome,
        "queue": options.queue,
        "app": options.app,
        "version": options.version,
    }
    _leave_note(note, write)


def log_to_stderr() -> None:
    """Spark's processes for hooks have no logging of their own; what they say joins the driver's
    log."""
    if not logging.root.handlers and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


class ReceiptReader(DataSourceReader):
    """One row, or none if nothing was written. Asked for on the driver, when the read is planned:
    tasks run on any host."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_names(options, READ_OPTIONS)
        self._write = options.get("write")
        self._socket = options.get("socket")
        self._timeout_s = read_timeout(options, TIMEOUT_S)

    def partitions(self) -> Sequence[InputPartition]:
        note = {} if self._write else _read_note()
        last = tuple(note[name] for name in _LAST) if note else None
        write = self._write or note.get("write")
        if write is None:
            return [InputPartition(None if last is None else {"last": last})]
        with connect(self._socket or note.get("socket"), self._timeout_s) as client:
            try:
                found = client.receipt(write)
            except ValueError:
                raise OptionError("write", write, "32 hexadecimal digits") from None
        return [InputPartition({**asdict(found), "queues": list(found.queues), "last": last})]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        row = partition.value
        if row is not None:
            yield (*(row.get(field.name) for field in fields(Receipt)), row["last"])


def _row(rows: "DataFrame") -> "Row | None":
    found = rows.collect()
    return found[0] if found else None


def _receipt(row: "Row", asking: Receipts) -> Receipt | None:
    """One that can be waited for; None: there is but a note, of a duplicate."""
    if row["write"] is None:
        return None
    found = {field.name: row[field.name] for field in fields(Receipt)}
    receipt = Receipt(**{**found, "write": bytes(row["write"]), "queues": tuple(row["queues"])})
    return asked_by(asking, receipt)


def _leave_note(note: dict[str, Any], write: bytes) -> None:
    place = _place()
    if place is None:
        return
    fresh = place / f"{_NOTE}.{os.getpid()}"
    try:
        fresh.write_text(json.dumps(note))
        fresh.replace(place / _NOTE)
    except OSError as problem:
        log.warning("last_receipt will not know of write %s: %s", write.hex(), problem)


def _read_note() -> dict[str, Any]:
    place = _place()
    try:
        note = json.loads((place / _NOTE).read_text()) if place else {}
    except FileNotFoundError:
        return {}
    assert isinstance(note, dict)
    return note


def _place() -> Path | None:
    first = os.environ.get(_PLACE, "").partition(",")[0]
    return Path(first) if first else None
