"""Run ids (UUIDv7) and item ids (a run's id and an index), as bytes and as people read them."""

import os
import re
import threading
import time
from typing import Final

from forebay.limits import RUN_ITEMS_MAX

RUN_ID_BYTES: Final = 16
ITEM_ID_BYTES: Final = 18

_RUN_ID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,3}")
_MILLIS_END: Final = 2**48

_lock = threading.Lock()
_last = 0

# A child forked while another thread makes an id would wait for that thread for ever.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def new_run_id(now_ms: int | None = None) -> bytes:
    """A UUIDv7. Ids made by one process sort in the order in which they were made.

    Below the 48 bits of milliseconds stand 12 bits of a counter that starts anew each
    millisecond; should it run over, the clock part moves ahead, so that the order still holds.
    """
    global _last
    millis = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    if not 0 <= millis < _MILLIS_END:
        raise ValueError(f"{millis} ms is out of the range of a run id")
    with _lock:
        stamp = max(millis << 12, _last + 1)
        _last = stamp
    high = (stamp >> 12) << 16 | 0x7000 | (stamp & 0xFFF)
    low = int.from_bytes(os.urandom(8), "big") & (2**62 - 1) | 2**63
    return (high << 64 | low).to_bytes(RUN_ID_BYTES, "big")


def run_id_ms(run_id: bytes) -> int | None:
    """When an id was made, in milliseconds since 1970; None if it is not a UUIDv7."""
    if len(run_id) != RUN_ID_BYTES or run_id[6] >> 4 != 7:
        return None
    return int.from_bytes(run_id[:6], "big")


def format_run_id(run_id: bytes) -> str:
    text = run_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parse_run_id(text: str) -> bytes:
    """The 16 bytes of a run id, with its dashes or without; ValueError for anything else."""
    if not _RUN_ID.fullmatch(text):
        raise ValueError(f"not a run id: {text!r}")
    return bytes.fromhex(text.replace("-", ""))


def format_item_id(run_id: bytes, index: int) -> str:
    return f"{format_run_id(run_id)}-{index}"


def parse_item_id(text: str) -> tuple[bytes, int]:
    """Run id and index of an item id; ValueError for anything else."""
    run_text, _, index_text = text.rpartition("-")
    if not (_RUN_ID.fullmatch(run_text) and _INDEX.fullmatch(index_text)):
        raise ValueError(f"not an item id: {text[:60]!r}")
    index = int(index_text)
    if index >= RUN_ITEMS_MAX:
        raise ValueError(f"an item's index is below {RUN_ITEMS_MAX}, not {index}")
    return parse_run_id(run_text), index


def pack_item_id(run_id: bytes, index: int) -> bytes:
    """The 18 bytes of an item id; ValueError if no item has it."""
    if len(run_id) != RUN_ID_BYTES or not 0 <= index < RUN_ITEMS_MAX:
        raise ValueError(f"no item has the id {run_id.hex()}-{index}")
    return run_id + index.to_bytes(2, "little")


def unpack_item_id(packed: bytes) -> tuple[bytes, int]:
    """Run id and index of 18 bytes; ValueError if no item has that id."""
    run_id, index = packed[:RUN_ID_BYTES], int.from_bytes(packed[RUN_ID_BYTES:], "little")
    if len(packed) != ITEM_ID_BYTES or index >= RUN_ITEMS_MAX:
        raise ValueError(f"not a packed item id: {packed.hex()}")
    return run_id, index
