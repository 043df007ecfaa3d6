"""A disk that kills its own process at a named point, the n-th time that the point is reached.

Points are named after what happens to which file: `mid_mark_append` is in the middle of appending
to a mark file, `after_block_sync` is after the sync of a group and before its answers. Those with
`recovery`, `rewrite` and `quarantine` in their names lie in the recovery itself. In the middle of
a write, the first half of its bytes has been written.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from daemon.journal import chunk
from daemon.journal.checkpoint import CHECKPOINT, CHECKPOINT_OLD, META, RECENT
from daemon.journal.records import RECORDS
from tests.crash.killer import Killer, die
from tests.crash.named_files import NamedFiles

SERVING_POINTS: Final = (
    "before_block_write",
    "mid_block_write",
    "after_block_write",
    "after_block_sync",
    "before_mark_append",
    "mid_mark_append",
    "after_mark_append",
    "mid_meta_write",
    "before_meta_rename",
    "after_meta_rename",
)
"""Reached all the time."""
ROTATION_POINTS: Final = (
    "before_mark_sync",
    "after_mark_sync",
    "mid_spare_write",
    "before_spare_rename",
    "mid_head_write",
    "after_head_sync",
    "after_chunk_rename",
    "mid_index_write",
    "before_index_rename",
    "after_index_rename",
)
"""Reached once for each chunk, or each second."""
FREEING_POINTS: Final = (
    "mid_recent_write",
    "before_recent_rename",
    "after_recent_rename",
    "before_old_checkpoint_rename",
    "after_old_checkpoint_rename",
    "mid_checkpoint_write",
    "before_checkpoint_rename",
    "after_checkpoint_rename",
    "before_recycle_rename",
    "after_recycle_rename",
    "before_index_unlink",
    "before_marks_unlink",
)
"""Reached when a chunk holds nothing any more."""
CLOSING_POINTS: Final = (
    "before_closing_seal",
    "after_closing_seal",
)
"""Reached when the daemon is told to stop."""
RECOVERY_POINTS: Final = (
    "before_recovery_seal",
    "after_recovery_seal",
    "mid_recovery_index_write",
    "before_recovery_index_rename",
    "after_recovery_index_rename",
    "before_recovery_unlink",
    "mid_quarantine_write",
    "at_recovery_end",
)
REWRITE_POINTS: Final = (
    "mid_rewrite_write",
    "before_rewrite_rename",
    "after_rewrite_rename",
)
"""Reached when recovery finds a chunk whose head is damaged."""
RECORD_POINTS: Final = (
    "before_record_append",
    "mid_record_append",
    "after_record_append",
    "before_record_sync",
    "after_record_sync",
    "mid_record_write",
    "before_record_rename",
    "after_record_rename",
)
"""Reached where there are writes that were staged: with each step of one, and at the next start."""
POINTS: Final = (
    *SERVING_POINTS,
    *ROTATION_POINTS,
    *FREEING_POINTS,
    *CLOSING_POINTS,
    *RECOVERY_POINTS,
    *REWRITE_POINTS,
)


class KillingFiles(NamedFiles):
    def __init__(self, directory: Path, killer: Killer) -> None:
        super().__init__(directory)
        self._arrives, self._reach = killer.arrives, killer.reach
        self._is_recovering = True

    def _kind(self, name: str) -> str:
        """What a file is, as the points call it."""
        recovery = "recovery_" if self._is_recovering else ""
        stem = name.removesuffix(".tmp")
        if name.startswith("quarantine/"):
            return "quarantine"
        if stem.startswith(chunk.SPARE_PREFIX):
            return "spare"
        if stem.endswith(chunk.SUFFIX):
            return "rewrite" if stem != name else "block"
        if stem.endswith(chunk.INDEX_SUFFIX):
            return recovery + "index"
        if stem.endswith(chunk.MARKS_SUFFIX):
            return "mark"
        names = {META: "meta", CHECKPOINT: "checkpoint", RECENT: "recent", RECORDS: "record"}
        return names.get(stem, "other")

    # The system calls that change something.

    def write(self, fd: int, parts: Sequence[bytes], at: int) -> None:
        name = self.name_of(fd)
        kind = self._kind(name)
        if kind == "spare" and not name.endswith(".tmp"):
            kind = "head"
        self._reach(f"before_{kind}_write")
        if self._arrives(f"mid_{kind}_write"):
            data = b"".join(parts)
            super().write(fd, [data[: len(data) // 2]], at)
            die()
        super().write(fd, parts, at)
        self._reach(f"after_{kind}_write")

    def append(self, fd: int, data: bytes) -> None:
        kind = self._kind(self.name_of(fd))
        self._reach(f"before_{kind}_append")
        if self._arrives(f"mid_{kind}_append"):
            super().append(fd, data[: len(data) // 2])
            die()
        super().append(fd, data)
        self._reach(f"after_{kind}_append")

    def datasync(self, fd: int) -> None:
        name = self.name_of(fd)
        kind = self._kind(name)
        if kind == "spare":
            kind = "head"
        self._reach(f"before_{kind}_sync")
        super().datasync(fd)
        self._reach(f"after_{kind}_sync")

    def truncate(self, fd: int, length: int) -> None:
        when = "recovery" if self._is_recovering else "closing"
        self._reach(f"before_{when}_seal")
        super().truncate(fd, length)
        self._reach(f"after_{when}_seal")

    def rename(self, old: str, new: str) -> None:
        kind = self._kind(new)
        if new == CHECKPOINT_OLD:
            kind = "old_checkpoint"
        elif kind == "spare" and old.endswith(chunk.SUFFIX):
            kind = "recycle"
        elif old.startswith(chunk.SPARE_PREFIX) and kind == "block":
            kind = "chunk"
        elif old.endswith(".tmp") and kind == "block":
            kind = "rewrite"
        self._reach(f"before_{kind}_rename")
        super().rename(old, new)
        self._reach(f"after_{kind}_rename")

    def unlink(self, name: str) -> None:
        if self._is_recovering:
            self._reach("before_recovery_unlink")
        elif name.endswith(chunk.INDEX_SUFFIX):
            self._reach("before_index_unlink")
        elif name.endswith(chunk.MARKS_SUFFIX):
            self._reach("before_marks_unlink")
        super().unlink(name)

    def free_bytes(self) -> int:
        """A spooler that has recovered looks first how much room there is."""
        if self._is_recovering:
            self._reach("at_recovery_end")
            self._is_recovering = False
        return super().free_bytes()
