"""Bounds the label values of /metrics.

All queues that are neither configured nor defined at run time share the label `other`. So do a
queue's flows after the first 32 ever seen, and destinations after the first 256. Values that share
a label are added up, so sums over labels are the daemon's totals.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from daemon.http.prometheus.exposition import labelled

OTHER: Final = "other"
FLOWS_MAX: Final = 32
DESTINATIONS_MAX: Final = 256

T = TypeVar("T")


class Labels:
    """The names that may be label values. A flow keeps the label it was given."""

    def __init__(self) -> None:
        self._flows: dict[str, dict[str, str]] = {}
        """Rendered labels by queue and flow."""
        self.queues: dict[str, str] = {OTHER: labelled({"queue": OTHER})}
        """Rendered labels by queue, `other` included."""
        self._destinations: set[str] = set()

    def flow(self, queue: str, flow: str) -> str:
        flows = self._flows.setdefault(queue, {})
        if flow not in flows:
            if len(flows) >= FLOWS_MAX:
                return OTHER
            flows[flow] = labelled({"queue": queue, "flow": flow})
        return flow

    def of_flow(self, queue: str, flow: str) -> str:
        """The rendered labels of a queue and a name that `flow` returned."""
        rendered = self._flows.get(queue, {}).get(flow)
        return rendered or labelled({"queue": queue, "flow": flow})

    def destination(self, name: str) -> str:
        if name not in self._destinations:
            if len(self._destinations) >= DESTINATIONS_MAX:
                return OTHER
            self._destinations.add(name)
        return name

    def keep(self, queues: Iterable[str]) -> None:
        """Sets the queues that are defined now; forgets the flows of queues that are gone."""
        queues = {*queues, OTHER}
        for gone in self._flows.keys() - queues:
            del self._flows[gone]
        if self.queues.keys() != queues:
            self.queues = {queue: labelled({"queue": queue}) for queue in queues}


def merged(
    found: Mapping[str, T], name: Callable[[str], str], together: Callable[[T, T], T]
) -> dict[str, T]:
    """Regroups values by label; those that share a label are combined with `together`."""
    by_label: dict[str, T] = {}
    for queue, value in found.items():
        label = name(queue)
        by_label[label] = together(by_label[label], value) if label in by_label else value
    return by_label


def add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}
