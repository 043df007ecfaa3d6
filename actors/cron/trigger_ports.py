"""What the triggers need from other actors: streams, warm, the catalogue, items, notices."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TriggerPorts:
    """What the triggers need from other actors."""

    hold: Callable[[str, str], Awaitable[None]]
    """Puts a queue into stream mode for a consumer; repeating it changes nothing."""
    drop: Callable[[str, str], Awaitable[None]]
    """Forgets a consumer; the items it had claimed are given back."""
    consumers: Callable[[], Iterable[tuple[str, str]]]
    """The queues in stream mode here, each with its consumer."""
    clear: Callable[[str], Awaitable[None]]
    """Moves slices that wait in warm to the cold store."""
    except_flows: Callable[[str], frozenset[str] | None]
    """The paused flows of a queue; None: the whole queue is paused."""
    has_come: Callable[[str], None]
    """Announces that a queue has new items in the cold store."""
    withdraw: Callable[[str], Awaitable[None]]
    """Deletes a waiting job item. Raises Refused if it is leased or dead."""
    failed: Callable[[str, str, str], None]
    """Called with a trigger, its queue, and the error."""
    retries_max: Callable[[str], int]
    """How many times an item of a queue may fail and still be retried."""
    dead: Callable[[str, str, int, Sequence[str]], None]
    """Called with a queue, why items of it became dead letters, how many, and some of their ids."""
