"""Events as Parquet, for frequent reading: needs pyarrow.

Rows are collected in memory, packed, until there are enough for a row group. A file can be read
only after its footer is written, so a crash loses the open file: at most `roll_interval` of events.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final

from actors.observers.events import COLUMNS, Event

GROUP_ROWS: Final = 65536
"""About 10 MB of them."""


class ParquetFormat:
    suffix = ".parquet"

    def __init__(self, everywhere: Mapping[str, str | int | float]) -> None:
        """`everywhere`: what every row has. ImportError without pyarrow."""
        # Needed for Parquet only; it is 150 MB.
        self._arrow: Any = import_module("pyarrow")
        self._parquet: Any = import_module("pyarrow.parquet")
        self._everywhere = dict(everywhere)
        arrow = self._arrow
        types = {"text": arrow.string(), "whole": arrow.int64(), "real": arrow.float64()}
        self._schema = arrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])

    def begin(self, fd: int) -> "ParquetBody":
        # A descriptor of its own: a writer that is given up still writes when it is collected,
        # and by then the number may be another file's.
        sink = os.fdopen(os.dup(fd), "wb", buffering=0)
        writer = self._parquet.ParquetWriter(sink, self._schema)
        return ParquetBody(self._arrow, self._schema, self._everywhere, sink, writer)

    def salvage(self, fd: int) -> int:
        """Without its footer nothing of it can be read."""
        return 0


class ParquetBody:
    def __init__(
        self, arrow: Any, schema: Any, everywhere: dict[str, Any], sink: Any, writer: Any
    ) -> None:
        self._arrow = arrow
        self._schema = schema
        self._everywhere = everywhere
        self._sink = sink
        self._writer = writer
        self._tables: list[Any] = []
        self._rows = 0

    def add(self, events: Sequence[Event]) -> None:
        rows = [event.row() | self._everywhere for event in events]
        self._tables.append(self._arrow.Table.from_pylist(rows, schema=self._schema))
        self._rows += len(rows)
        if self._rows >= GROUP_ROWS:
            self._write()

    def end(self) -> None:
        self._write()
        with self._as_os_errors():
            self._writer.close()
        self._sink.close()

    def let_go(self) -> None:
        # Whatever is wrong with it has been said.
        with suppress(OSError, ValueError, self._arrow.ArrowException):
            self._writer.close()
        with suppress(OSError):
            self._sink.close()

    def _write(self) -> None:
        tables, self._tables, self._rows = self._tables, [], 0
        if tables:
            with self._as_os_errors():
                self._writer.write_table(self._arrow.concat_tables(tables))

    @contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        try:
            yield
        except self._arrow.ArrowException as problem:
            raise OSError(str(problem)) from problem
