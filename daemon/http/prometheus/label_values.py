"""Which names may be label values: a few, however many there are.

A queue that is neither configured nor defined at run time is counted under `other`, with all others
of its kind; so are a queue's flows past the first 32 that were ever seen. Destinations come from
handlers, and so from definitions; past 256 they are `other`. Whatever is counted together is added
up, so that sums over labels are the daemon's.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from daemon.http.prometheus.exposition import labelled

OTHER: Final = "other"
FLOWS_MAX: Final = 32
DESTINATIONS_MAX: Final = 256

T = TypeVar("T")


class Labels:
    """Which names may be label values. Those that were given to flows stay theirs."""

    def __init__(self) -> None:
        self._flows: dict[str, dict[str, str]] = {}
        """By queue and flow, the rendered labels."""
        self.queues: dict[str, str] = {OTHER: labelled({"queue": OTHER})}
        """By queue, the rendered labels; of `other` as well."""
        self._destinations: set[str] = set()

    def flow(self, queue: str, flow: str) -> str:
        flows = self._flows.setdefault(queue, {})
        if flow not in flows:
            if len(flows) >= FLOWS_MAX:
                return OTHER
            flows[flow] = labelled({"queue": queue, "flow": flow})
        return flow

    def of_flow(self, queue: str, flow: str) -> str:
        """The labels of a queue and of what `flow` has said."""
        rendered = self._flows.get(queue, {}).get(flow)
        return rendered or labelled({"queue": queue, "flow": flow})

    def destination(self, name: str) -> str:
        if name not in self._destinations:
            if len(self._destinations) >= DESTINATIONS_MAX:
                return OTHER
            self._destinations.add(name)
        return name

    def keep(self, queues: Iterable[str]) -> None:
        """Those that are defined now; forgets the flows of queues that are gone."""
        queues = {*queues, OTHER}
        for gone in self._flows.keys() - queues:
            del self._flows[gone]
        if self.queues.keys() != queues:
            self.queues = {queue: labelled({"queue": queue}) for queue in queues}


def merged(
    found: Mapping[str, T], name: Callable[[str], str], together: Callable[[T, T], T]
) -> dict[str, T]:
    """By label: what belongs to `other` is put together."""
    by_label: dict[str, T] = {}
    for queue, value in found.items():
        label = name(queue)
        by_label[label] = together(by_label[label], value) if label in by_label else value
    return by_label


def add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}
