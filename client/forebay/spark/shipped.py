"""The data source `forebay` for processes without the package: it brings the package along.

Spark pickles a data source, its readers, writers, partitions and messages, and unpickles them in
other processes, where a class of a package that is not installed cannot be found. So all of these
are wrapped. Spark sees the classes below, pickled by value (shipping.py arranges that). They
contain the real ones, pickled, together with the package's files as a zip. Opening a wrapper first
makes the package importable.

This module must not import forebay: it runs before forebay can be imported.
"""

import hashlib
import importlib.util
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType


def unpack(archive: bytes) -> None:
    """Makes `forebay` importable in this process, unless it already is."""
    if importlib.util.find_spec("forebay") is not None:
        return
    # One name for the same bytes, so that a task does not leave a file behind each time.
    name = f"forebay-{os.getuid()}-{hashlib.sha256(archive).hexdigest()[:32]}"
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o22:
        raise PermissionError(f"{folder} is not this user's alone")
    path = folder / "client.zip"
    if not path.exists():
        descriptor, fresh = tempfile.mkstemp(dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(archive)
        Path(fresh).replace(path)
    sys.path.append(str(path))
    importlib.invalidate_caches()


class Parcel:
    """A pickled object of forebay, with the package."""

    def __init__(self, archive: bytes, content: Any) -> None:
        self.archive = archive
        self.pickled = pickle.dumps(content)
        self.opened: Any = content

    def __getstate__(self) -> tuple[bytes, bytes]:
        return self.archive, self.pickled

    def __setstate__(self, state: tuple[bytes, bytes]) -> None:
        self.archive, self.pickled = state
        self.opened = None

    def open(self) -> Any:
        if self.opened is None:
            unpack(self.archive)
            self.opened = pickle.loads(self.pickled)
        return self.opened


class ShippedMessage(WriterCommitMessage):
    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled


class ShippedPartition(InputPartition):
    """The real partition is opened by its reader, which has the package."""


class ShippedWriter(DataSourceArrowWriter):
    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return ShippedMessage(pickle.dumps(self.parcel.open().write(iterator)))

    def commit(self, messages: Sequence[Any]) -> None:
        self.parcel.open().commit(open_messages(self.parcel, messages))

    def abort(self, messages: Sequence[Any]) -> None:
        self.parcel.open().abort(open_messages(self.parcel, messages))


class ShippedStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return ShippedMessage(pickle.dumps(self.parcel.open().write(iterator)))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        self.parcel.open().commit(open_messages(self.parcel, messages), batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        self.parcel.open().abort(open_messages(self.parcel, messages), batchId)


class ShippedReader(DataSourceReader):
    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel

    def partitions(self) -> Sequence[InputPartition]:
        return [ShippedPartition(pickle.dumps(part)) for part in self.parcel.open().partitions()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        reader = self.parcel.open()
        yield from reader.read(pickle.loads(partition.value))


class ShippedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel

    def initialOffset(self) -> dict[str, Any]:
        return dict(self.parcel.open().initialOffset())

    def getDefaultReadLimit(self) -> Any:
        return self.parcel.open().getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self.parcel.open().prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return dict(self.parcel.open().latestOffset(start, limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.parcel.open().reportLatestOffset()
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        parts = self.parcel.open().partitions(start, end)
        return [ShippedPartition(pickle.dumps(part)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        reader = self.parcel.open()
        yield from reader.read(pickle.loads(partition.value))

    def commit(self, end: dict[str, Any]) -> None:
        self.parcel.open().commit(end)

    def stop(self) -> None:
        self.parcel.open().stop()


class ShippedSource(DataSource):
    archive: ClassVar[bytes]
    """The package's files, zipped."""

    @classmethod
    def name(cls) -> str:
        return "forebay"

    def schema(self) -> Any:
        return self._real().schema()

    def writer(self, schema: StructType, overwrite: bool) -> ShippedWriter:
        return ShippedWriter(Parcel(self.archive, self._real().writer(schema, overwrite)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> ShippedStreamWriter:
        return ShippedStreamWriter(
            Parcel(self.archive, self._real().streamWriter(schema, overwrite))
        )

    def reader(self, schema: StructType) -> ShippedReader:
        return ShippedReader(Parcel(self.archive, self._real().reader(schema)))

    def streamReader(self, schema: StructType) -> ShippedStreamReader:
        return ShippedStreamReader(Parcel(self.archive, self._real().streamReader(schema)))

    def _real(self) -> Any:
        unpack(self.archive)
        from forebay.spark.source import ForebaySource

        return ForebaySource(self.options)


def open_messages(parcel: Parcel, messages: Sequence[Any]) -> list[Any]:
    parcel.open()
    return [None if at is None else pickle.loads(at.pickled) for at in messages]
