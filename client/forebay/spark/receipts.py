"""Receipts for Spark: which write was the last of this application, and what became of it.

    df.write.format("forebay").option("queue", "crm").mode("append").save()
    receipt = forebay.spark.last_receipt(spark)
    print(receipt.write.hex(), receipt.accepted, receipt.pending)

Spark commits a write in a Python process of its own, never in the user's, which with Spark Connect
is not even on the same machine. So commit leaves a note in the directory that Spark keeps for this
application on the driver's host (and removes with it), and `last_receipt` reads it through the
data source: `spark.read.format("forebay").option("state", "receipt")` is planned in such a process
on the driver as well, and asks the daemon there.

What it can't do: tell sessions of one application apart. With Spark Connect others may have written
in the meantime; the write's id is in the driver's log, and `receipt(spark, id)` asks for that one.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.client import connect
from forebay.receipts import Receipt
from forebay.spark.options import OptionError, SinkOptions, check_names
from forebay.writes import Published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("forebay.spark")

STATE: Final = "receipt"
"""Of the option `state` of a read."""
RECEIPT_DDL: Final = (
    "write BINARY, published_ms BIGINT, app STRING, version BIGINT, queues ARRAY<STRING>, "
    "accepted BIGINT, delivered BIGINT, dead BIGINT, dropped BIGINT, deleted BIGINT, "
    "pending BIGINT"
)
READ_OPTIONS: Final = ("state", "write", "socket", "timeout")

_PLACE: Final = "SPARK_LOCAL_DIRS"
"""Spark tells its Python processes where the application's own directories are."""
_NOTE: Final = "forebay-last-write.json"


def last_receipt(spark: "SparkSession") -> Receipt | None:
    """The receipt, as of now, of the last write that this application has published."""
    return _read(spark.read.format("forebay").option("state", STATE).load())


def receipt(spark: "SparkSession", write: bytes | str, socket: str | None = None) -> Receipt | None:
    """The receipt of this write, from the daemon that the driver reaches."""
    text = write if isinstance(write, str) else write.hex()
    reading = spark.read.format("forebay").option("state", STATE).option("write", text)
    if socket is not None:
        reading = reading.option("socket", socket)
    return _read(reading.load())


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
    if published.write is not None:
        _leave_note({"write": published.write.hex(), "socket": options.socket})


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

    def partitions(self) -> Sequence[InputPartition]:
        note = {} if self._write else _read_note()
        write = self._write or note.get("write")
        if write is None:
            return [InputPartition(None)]
        with connect(self._socket or note.get("socket")) as client:
            try:
                found = client.receipt(write)
            except ValueError:
                raise OptionError("write", write, "32 hexadecimal digits") from None
        return [InputPartition(asdict(found))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        if partition.value is not None:
            row = {**partition.value, "queues": list(partition.value["queues"])}
            yield tuple(row[field.name] for field in fields(Receipt))


def _read(rows: "DataFrame") -> Receipt | None:
    found = rows.collect()
    if not found:
        return None
    row = found[0].asDict()
    return Receipt(**{**row, "write": bytes(row["write"]), "queues": tuple(row["queues"])})


def _leave_note(note: dict[str, Any]) -> None:
    place = _place()
    if place is None:
        return
    fresh = place / f"{_NOTE}.{os.getpid()}"
    try:
        fresh.write_text(json.dumps(note))
        fresh.replace(place / _NOTE)
    except OSError as problem:
        log.warning("last_receipt will not know of write %s: %s", note["write"], problem)


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
