"""What the spooler has counted since the daemon started, for the metrics.

Plain numbers that its parts add to, a group or a run at a time. Like all counts since the start
they begin at 0 with every life of the daemon; the books are what lasts.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SpoolCounts:
    runs: int = 0
    """Runs that were stored, staged ones too."""
    bytes: int = 0
    """What they take on disk."""
    flushes: int = 0
    """Commits: groups of runs, marks or records, each with at most a sync or two."""
    chunk_rotations: int = 0
    """Chunks that came into use."""
    chunks_abandoned: int = 0
    """Those that were given up because a write or a sync had failed."""
    meta_syncs: int = 0
    """How often `spool.meta` was replaced."""
    refused: Counter[str] = field(default_factory=Counter)
    """Items that were not taken, by the code that their push was answered with."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Items that were stored and went without being delivered, by why."""
