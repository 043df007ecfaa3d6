"""Tells glibc's malloc what to do with the memory of runs: keep it while they come, and no longer.

A run is a large block that lives for a moment. Left alone, glibc learns from the sizes that are
freed to keep such blocks in the heap, between small objects, and the heap does not shrink. Where
they are mapped one by one (from 128 KiB, as glibc begins), they go back at once; but then every
page of every run is a page fault, in the thread for which all of intake waits: a third of its time.

So runs of the usual sizes lie in the heap, some of which stays with the process, and what is free
in it goes back to the system when the journal has had nothing to do for a while.

Measured with runs of 310 KB (one producer, ready-made, uncompressed, in memory), by turns: million
items/s, and the daemon's processor time for a run. And with a backlog of a million items in runs of
120 KB: MiB of the process just after the last push, and at its peak.

    mapped from    kept at the end    items/s    a run       pushed    peak
    128 KiB        128 KiB            1.35       1,290 µs     95       102
    4 MiB          128 KiB            1.80         890
    4 MiB          64, 256 MiB        2.09         830       105       105
    2 MiB          8 MiB                                      92       110

Fewer arenas (M_ARENA_MAX=2) changed nothing beyond the noise, and are left out.

What it can't do: anything with another C library or allocator, whose own ways are left alone.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Final

import trio

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""As in malloc.h."""
MAPPED_FROM_BYTES: Final = 2 * 1024 * 1024
"""A run has at most 1 MiB before compression, by default."""
KEPT_BYTES: Final = 8 * 1024 * 1024
"""What is free at the end of the heap stays, up to here: the next runs take it."""
QUIET_S: Final = 2.0
BUSY_S: Final = 60.0
"""So often it goes back where work has no end: a push a second must not keep what a burst had."""


def keep_runs_in_heap() -> bool:
    """For the whole process; False if malloc cannot be told, or the operator has told it."""
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    )


def return_free_memory() -> bool:
    """All pages of the heap in which nothing lies, at its end or not; False if that cannot be.

    Takes milliseconds, in which others wait for memory; not for the interpreter.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False
    trim(ctypes.c_size_t(KEPT_BYTES))
    return True


async def return_memory_when_quiet(
    work_done: Callable[[], int], give_back: Callable[[], object] = return_free_memory
) -> None:
    """Gives memory back once after each stretch of work, of which `work_done` is a count, and now
    and then in a long one."""
    seen = given_back = work_done()
    due_at = trio.current_time() + BUSY_S
    while True:
        await trio.sleep(QUIET_S)
        now = work_done()
        if now != given_back and (now == seen or trio.current_time() >= due_at):
            await trio.to_thread.run_sync(give_back)
            given_back = now
            due_at = trio.current_time() + BUSY_S
        seen = now
