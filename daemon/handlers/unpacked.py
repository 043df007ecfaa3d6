"""A cache of unpacked runs, so that small batches unpack a run only once.

A queue with batches of 1 item and runs of 4,096 would decompress each run 4,096 times: 0.6 ms per
item. Bounded in runs and in bytes; the oldest is evicted first, and unpacked again if needed. May
be used from several threads.
"""

import threading
from collections import OrderedDict
from typing import Final

from actors.model.slices import LentRun, Slice
from forebay.run import Run

RUNS_MAX: Final = 32
BYTES_MAX: Final = 64 * 1024 * 1024


class UnpackedRuns:
    def __init__(self, runs_max: int = RUNS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._runs_max = runs_max
        self._bytes_max = bytes_max
        # LentRun is compared by identity, and the key keeps it alive, so its id is not reused.
        self._runs: OrderedDict[LentRun, Run] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def run_of(self, part: Slice) -> Run:
        """The run of a slice. Kept while later items of the run may still be needed."""
        lent = part.run
        is_last = part.bits.bit_length() >= lent.head.count
        with self._lock:
            known = self._runs.get(lent)
            if known is None:
                known = Run(lent.head, lent.data)
                if not is_last:
                    self._remember(lent, known)
            elif is_last:
                self._forget(lent)
        return known

    def _remember(self, lent: LentRun, run: Run) -> None:
        self._runs[lent] = run
        self._bytes += lent.head.raw_bytes
        while len(self._runs) > self._runs_max or self._bytes > self._bytes_max:
            self._forget(next(iter(self._runs)))

    def _forget(self, lent: LentRun) -> None:
        del self._runs[lent]
        self._bytes -= lent.head.raw_bytes
