"""Where the torture's items land: what a daemon's workers call, a line for each batch.

A line is written in one step, before the items count as delivered: a delivery that nobody heard of
is in the file, one that did not happen is not. Every twentieth item fails at first.
"""

import json
import os
import time
import zlib
from collections.abc import Sequence

from forebay import Item, Retry

PATH = "FLEET_LANDING"
"""The file, in the environment."""


def land(items: Sequence[Item]) -> list[Retry | None]:
    failed = [item.attempt == 0 and zlib.crc32(item.payload) % 20 == 0 for item in items]
    landed = [item for item, fails in zip(items, failed, strict=True) if not fails]
    line = {
        "queue": items[0].queue,
        "at": time.time(),
        "ids": [item.id for item in landed],
        "payloads": [item.text for item in landed],
        "attempts": [item.attempt for item in landed],
    }
    where = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(where, json.dumps(line).encode() + b"\n")
    finally:
        os.close(where)
    return [Retry("at first", after_s=0.1) if fails else None for fails in failed]
