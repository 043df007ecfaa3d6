"""The index of a sealed chunk: what recovery must know about its runs, without reading them.

    8s "FBINDEX2" | u64 number | u64 used | u64 file size | u32 runs | u32 queues | u32 crc32c
    u8 length + name of each account (actors/model/books.py): of the queue, or of a stage
    u32 offsets[] | u32 sizes[] | u16 counts[] | u16 queues[] | u8 priorities[] | u64 due_ms[]
    u32 fingerprints[] (actors/spooler/intake.py) | 16s run ids[]

The CRC covers everything but itself. An index is a hint: if it is missing, damaged, or does not
fit the chunk's file, the chunk is scanned instead.

A draft has the same format. It is the index of the chunk that takes runs now, as it was about a
second ago, and serves one purpose: if blocks of that chunk are damaged before it is sealed, the
draft still says how many items of which queue they had.
"""

import struct
import sys
from array import array
from typing import Final

from crc32c import crc32c

from actors.model.books import account_of
from forebay.ids import RUN_ID_BYTES
from forebay.run import RunHead

_MAGIC = b"FBINDEX2"
_HEAD = struct.Struct("<8sQQQII")
_CRC = struct.Struct("<I")
_COLUMNS: Final = (("I", 4), ("I", 4), ("H", 2), ("H", 2), ("B", 1), ("Q", 8), ("I", 4))


class ChunkIndex:
    """The runs of one chunk, column by column, in the order of their offsets."""

    __slots__ = (
        "_account_numbers",
        "account_numbers",
        "accounts",
        "counts",
        "due_ms",
        "fingerprints",
        "number",
        "offsets",
        "priorities",
        "run_ids",
        "sizes",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.accounts: list[str] = []
        self._account_numbers: dict[str, int] = {}
        self.offsets = array("I")
        self.sizes = array("I")
        self.counts = array("H")
        self.account_numbers = array("H")
        self.priorities = array("B")
        self.due_ms = array("Q")
        self.fingerprints = array("I")
        self.run_ids = bytearray()

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, size: int, head: RunHead, content: int, stage: bytes = b"") -> None:
        """`content`: the run's fingerprint."""
        self._append(
            offset,
            size,
            head.count,
            self._account_number(account_of(head, stage).name),
            head.priority,
            head.due_ms,
            content,
            head.run_id,
        )

    def _append(
        self,
        offset: int,
        size: int,
        count: int,
        account_number: int,
        priority: int,
        due_ms: int,
        content: int,
        run_id: bytes,
    ) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.counts.append(count)
        self.account_numbers.append(account_number)
        self.priorities.append(priority)
        self.due_ms.append(due_ms)
        self.fingerprints.append(content)
        self.run_ids += run_id

    def _account_number(self, name: str) -> int:
        number = self._account_numbers.get(name)
        if number is None:
            number = self._account_numbers[name] = len(self.accounts)
            self.accounts.append(name)
        return number

    def copy_row(self, other: "ChunkIndex", row: int) -> None:
        """Adds a row of another index."""
        account = other.accounts[other.account_numbers[row]]
        self._append(
            other.offsets[row],
            other.sizes[row],
            other.counts[row],
            self._account_number(account),
            other.priorities[row],
            other.due_ms[row],
            other.fingerprints[row],
            other.run_id(row),
        )

    def copy(self) -> "ChunkIndex":
        """A copy of the complete rows. Another thread may be adding rows: it writes a run column by
        column, its id last."""
        rows = len(self.run_ids) // RUN_ID_BYTES
        copy = ChunkIndex(self.number)
        for mine, its in zip(self._columns(), copy._columns(), strict=True):
            its.extend(mine[:rows])
        copy.run_ids += self.run_ids[: rows * RUN_ID_BYTES]
        copy.accounts = self.accounts[:]
        return copy

    def room(self) -> int:
        """How many more runs fit, whatever their accounts: a chunk names at most 65,535."""
        return 0xFFFF - len(self.accounts)

    def run_id(self, row: int) -> bytes:
        return bytes(self.run_ids[row * RUN_ID_BYTES : (row + 1) * RUN_ID_BYTES])

    def pack(self, used: int, file_size: int) -> bytes:
        names = [name.encode() for name in self.accounts]
        parts = [bytes((len(name),)) + name for name in names]
        parts += [_little(column) for column in self._columns()]
        parts.append(bytes(self.run_ids))
        head = _HEAD.pack(_MAGIC, self.number, used, file_size, len(self), len(names))
        crc = crc32c(head)
        for part in parts:
            crc = crc32c(part, crc)
        return b"".join((head, _CRC.pack(crc), *parts))

    def _columns(self) -> tuple["array[int]", ...]:
        return (
            self.offsets,
            self.sizes,
            self.counts,
            self.account_numbers,
            self.priorities,
            self.due_ms,
            self.fingerprints,
        )


def unpack_index(data: bytes, number: int, file_size: int | None) -> tuple[ChunkIndex, int] | None:
    """The index and the chunk's used bytes; None unless it is whole and fits the chunk's file.
    With a size of None it need not fit: it says what the file once held."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    magic, claimed, used, claimed_size, runs, queues = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if (magic, claimed) != (_MAGIC, number):
        return None
    if file_size is not None and (claimed_size != file_size or used > file_size):
        return None
    at = _HEAD.size + _CRC.size
    view = memoryview(data)
    if crc32c(view[at:], crc32c(view[: _HEAD.size])) != crc:
        return None
    index = ChunkIndex(number)
    for _ in range(queues):
        length = data[at]
        index.accounts.append(data[at + 1 : at + 1 + length].decode())
        at += 1 + length
    index._account_numbers = {name: order for order, name in enumerate(index.accounts)}
    for column, (_, width) in zip(index._columns(), _COLUMNS, strict=True):
        column.frombytes(view[at : at + runs * width])
        if sys.byteorder == "big":
            column.byteswap()
        at += runs * width
    index.run_ids += view[at : at + runs * RUN_ID_BYTES]
    return index, used


def _little(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


for _code, _width in _COLUMNS:
    assert array(_code).itemsize == _width
