"""What the actor of triggers needs of the others: streams, warm, the catalogue, items, notices."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TriggerPorts:
    """What the actor needs of the others."""

    hold: Callable[[str, str], Awaitable[None]]
    """Puts a queue into stream mode for a consumer; again: nothing."""
    drop: Callable[[str, str], Awaitable[None]]
    """Forgets a consumer; what it had claimed is given back."""
    consumers: Callable[[], Iterable[tuple[str, str]]]
    """The queues that are in stream mode here, each with whom it is kept for."""
    clear: Callable[[str], Awaitable[None]]
    """Moves what waits in warm to the cold store."""
    except_flows: Callable[[str], frozenset[str] | None]
    """The flows of a queue that are paused; None: all of it is."""
    has_come: Callable[[str], None]
    """A queue has something new in the cold store."""
    withdraw: Callable[[str], Awaitable[None]]
    """Deletes a job item that waits. Refused if somebody has it in hand, or it is dead."""
    failed: Callable[[str, str, str], None]
    """Told of a trigger, its queue, and what was wrong."""
    retries_max: Callable[[str], int]
    """How often an item of a queue may fail, and is tried again."""
    dead: Callable[[str, str, int, Sequence[str]], None]
    """Told of a queue, why items of it are dead letters now, how many, and some of their ids."""
