"""Counts of the spooler since the daemon started, for the metrics.

Plain numbers that its parts add to, per group or per run. Like all counts since the start they
begin at 0 after a restart; the books are what persists.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SpoolCounts:
    runs: int = 0
    """Stored runs, including staged ones."""
    bytes: int = 0
    """Their size on disk."""
    flushes: int = 0
    """Commits: groups of runs, marks or records, each with at most a sync or two."""
    chunk_rotations: int = 0
    """Chunks that came into use."""
    chunks_abandoned: int = 0
    """Chunks that were given up because a write or a sync had failed."""
    meta_syncs: int = 0
    """How many times `spool.meta` was replaced."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused items, by the code that answered their push."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Items that were stored and then removed undelivered, by reason."""
