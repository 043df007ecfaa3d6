"""Makes the /metrics lines by flow, and keeps them from one scrape to the next.

Lines are made again only for queues whose flows have changed; ages change with every scrape.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from actors.metrics.snapshot import FlowState, Snapshot
from daemon.http.prometheus.exposition import Family, Page
from daemon.http.prometheus.label_values import OTHER, Labels


class _Waiting:
    """The waiting items of one pair of labels."""

    __slots__ = ("cold", "cold_oldest_ms", "dead", "warm", "warm_oldest_ms")

    def __init__(self) -> None:
        self.warm = self.cold = self.dead = 0
        self.warm_oldest_ms: int | None = None
        self.cold_oldest_ms: int | None = None

    def add(self, flow: FlowState) -> None:
        self.warm += flow.warm
        self.cold += flow.cold
        self.dead += flow.dead
        self.warm_oldest_ms = _older(self.warm_oldest_ms, flow.warm_oldest_ms)
        self.cold_oldest_ms = _older(self.cold_oldest_ms, flow.cold_oldest_ms)


def _older(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


class _Shown(NamedTuple):
    """The lines made from the flows of one queue."""

    of: list[FlowState]
    items: str
    dead: str
    """The finished lines of two families."""
    oldest: list[tuple[str, int]]
    """Line beginnings of the third family, and when the oldest item was enqueued: ages change
    with every scrape."""
    oldest_ms: float


class FlowLines:
    """Used by one scrape at a time. The lines of a queue that is gone are forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, _Shown] = {}

    def add_to(
        self,
        page: Page,
        snapshot: Snapshot,
        name: Callable[[str], str],
        labels: Labels,
        now_ms: int,
    ) -> None:
        queues: dict[str, list[FlowState]] = {}
        for flow in snapshot.flows:
            queues.setdefault(name(flow.queue), []).append(flow)
        before, self._known = self._known, {}
        for queue, found in queues.items():
            shown = before.get(queue)
            if shown is None or shown.of != found:
                shown = _shown(queue, found, labels)
            self._known[queue] = shown
        text = "Waiting items, by flow and tier."
        items = page.family("flow_items", "gauge", text)
        text = "Age of the oldest waiting item, by flow and tier."
        ages = page.family("flow_oldest_age_seconds", "gauge", text)
        dead = page.family("flow_dead_items", "gauge", "Dead letters, by flow.")
        for shown in self._known.values():
            items.lines.append(shown.items)
            dead.lines.append(shown.dead)
            # Inlined because these lines change every time: calling `_age_s` doubles their cost.
            ages.lines.extend(
                [
                    f"{start}{(now_ms - at) / 1000 if at < now_ms else 0.0}\n"
                    for start, at in shown.oldest
                ]
            )
        self._add_oldest(page, {name(queue) for queue in snapshot.report["queues"]}, labels, now_ms)

    def _add_oldest(self, page: Page, queues: set[str], labels: Labels, now_ms: int) -> None:
        text = "Age of the oldest item that waits in warm or cold; 0 if none waits."
        family = page.family("queue_oldest_age_seconds", "gauge", text)
        for queue in sorted(queues | self._known.keys()):
            shown = self._known.get(queue)
            at_ms = math.inf if shown is None else shown.oldest_ms
            family.add(labels.queues[queue], _age_s(at_ms, now_ms))


def _shown(queue: str, flows: list[FlowState], labels: Labels) -> _Shown:
    waiting: dict[str, _Waiting] = {}
    for flow in flows:
        label = labels.of_flow(queue, OTHER if queue == OTHER else labels.flow(queue, flow.flow))
        if label not in waiting:
            waiting[label] = _Waiting()
        waiting[label].add(flow)
    items = Family("forebay_flow_items", "gauge", "")
    dead = Family("forebay_flow_dead_items", "gauge", "")
    oldest: list[tuple[str, int]] = []
    for label, found in waiting.items():
        for tier, count, at_ms in (
            ("warm", found.warm, found.warm_oldest_ms),
            ("cold", found.cold, found.cold_oldest_ms),
        ):
            tiered = f'{label[:-1]},tier="{tier}"}}'
            items.add(tiered, count)
            if at_ms is not None:
                oldest.append((f"forebay_flow_oldest_age_seconds{tiered} ", at_ms))
        dead.add(label, found.dead)
    oldest_ms = min((at_ms for _, at_ms in oldest), default=math.inf)
    return _Shown(flows, "".join(items.lines), "".join(dead.lines), oldest, oldest_ms)


def _age_s(at_ms: float, now_ms: int) -> float:
    """0 for `math.inf`, which means that no item waits."""
    return max(0.0, (now_ms - at_ms) / 1000)
