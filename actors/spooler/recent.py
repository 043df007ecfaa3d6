"""The newest stored runs, so that a run that is pushed again is not stored again.

A run is known by its id. Its fingerprint tells a repeated run from a different run under the same
id, which must not be acknowledged: it would be lost.
"""

from collections import OrderedDict
from collections.abc import Mapping

from crc32c import crc32c

from forebay.column import Buffer
from forebay.run import RunHead


def fingerprint(head: RunHead, data: Buffer) -> int:
    """A CRC-32C of the queue's name and the body.

    The rest of the header is left out. A repeated push over HTTP is encoded anew with another time,
    and a run that moves to another daemon may have another attempt.
    """
    return crc32c(memoryview(data)[head.head_bytes :], crc32c(head.queue.encode()))


class RecentRuns:
    """Remembers the last `runs_max` runs, in order of arrival."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._under_way: set[bytes] = set()

    def __contains__(self, run_id: bytes) -> bool:
        return run_id in self._known or run_id in self._under_way

    def stored(self) -> dict[bytes, int]:
        """Ids and fingerprints of the stored runs, oldest first.

        Runs whose commit is under way are left out: if they were remembered and then not stored, a
        client that sends them again would be told that they are duplicates.
        """
        return dict(self._known)

    def is_another(self, head: RunHead, data: Buffer) -> bool:
        """Whether a run with other content was stored under this id."""
        known = self._known.get(head.run_id)
        return known is not None and known != fingerprint(head, data)

    def begin(self, run_id: bytes) -> None:
        """The run is being stored."""
        if self._runs_max:
            self._under_way.add(run_id)

    def add(self, run_id: bytes, content: int) -> None:
        """The run is stored; `content` is its fingerprint."""
        self._under_way.discard(run_id)
        if self._runs_max:
            self._known[run_id] = content
            if len(self._known) > self._runs_max:
                self._known.popitem(last=False)

    def discard(self, run_id: bytes) -> None:
        """The run was not stored after all."""
        self._under_way.discard(run_id)

    def update(self, found: Mapping[bytes, int]) -> None:
        """Adds the runs that recovery found."""
        for run_id, content in found.items():
            self.add(run_id, content)
