"""Sets damaged data aside: it is counted, logged, and never deleted."""

import time

import structlog

from actors.ports.journal import Damage
from daemon.journal import chunk
from daemon.journal.files import Files

log = structlog.get_logger()


def keep_gap(files: Files, number: int, start: int, end: int, damage: Damage) -> None:
    damage.blocks += 1
    damage.block_bytes += end - start
    kept = keep(files, number, start, end, "gap")
    log.warning(
        "recovery.block_damaged", chunk=f"{number:016x}", at=start, bytes=end - start, kept=kept
    )


def keep(files: Files, number: int, start: int, end: int, why: str) -> str | None:
    """Copies bytes into the quarantine; a disk without room for that does not stop recovery."""
    aside = f"{number:016x}-{start:08x}-{why}.bytes"
    try:
        files.copy_aside(chunk.chunk_name(number), start, end, aside)
    except OSError as error:
        log.warning("recovery.not_kept", chunk=f"{number:016x}", at=start, error=str(error))
        return None
    return aside


def set_chunk_aside(files: Files, number: int, damage: Damage, why: str) -> None:
    """Moves a chunk and what belongs to it into the quarantine."""
    set_aside(files, chunk.chunk_name(number), damage, why)
    names = files.names()
    for follower in chunk.follower_names(number):
        if follower in names:
            set_aside(files, follower, damage, "its chunk is set aside")


def set_aside(files: Files, name: str, damage: Damage, why: str) -> None:
    """Moves a whole file into the quarantine."""
    damage.files.append(name)
    try:
        files.rename(name, f"quarantine/{name}-{time.time_ns():x}")
        log.warning("recovery.file_set_aside", file=name, why=why)
    except OSError as error:
        log.error("recovery.file_left", file=name, why=why, error=str(error))
