"""What /metrics shows of the tiers: how full warm is, and what waits where, by flow."""

import math
from collections.abc import Callable, Mapping

from actors.snapshot import FlowState, Snapshot
from actors.tiers import Fill, Limits
from daemon.http.exposition import Page, labelled
from daemon.http.label_values import OTHER, Labels, merged


def warm(
    page: Page, snapshot: Snapshot, name: Callable[[str], str], labels: Mapping[str, str]
) -> None:
    pairs = {
        queue: (snapshot.fills.get(queue, Fill()), limits)
        for queue, limits in snapshot.limits.items()
    }
    items = page.family("warm_items", "gauge", "Items in warm, leased ones too.")
    size = page.family("warm_bytes", "gauge", "What these take.")
    items_max = page.family("warm_max_items", "gauge", "How many there may be.")
    bytes_max = page.family("warm_max_bytes", "gauge", "How much they may take.")
    text = "How full warm is: the greater share of the two limits."
    used = page.family("warm_utilization_ratio", "gauge", text)
    for queue, (fill, limits) in merged(pairs, name, _add_warm).items():
        label = labels[queue]
        items.add(label, fill.items)
        size.add(label, fill.bytes)
        items_max.add(label, limits.items)
        bytes_max.add(label, limits.bytes)
        used.add(label, max(fill.items / limits.items, fill.bytes / limits.bytes))


def _add_warm(one: tuple[Fill, Limits], other: tuple[Fill, Limits]) -> tuple[Fill, Limits]:
    fill = Fill(one[0].items + other[0].items, one[0].bytes + other[0].bytes)
    return fill, Limits(one[1].items + other[1].items, one[1].bytes + other[1].bytes)


class _Waiting:
    """What waits under one pair of labels."""

    __slots__ = ("cold", "cold_oldest_ms", "dead", "warm", "warm_oldest_ms")

    def __init__(self) -> None:
        self.warm = self.cold = self.dead = 0
        self.warm_oldest_ms = self.cold_oldest_ms = math.inf

    def add(self, flow: FlowState) -> None:
        self.warm += flow.warm
        self.cold += flow.cold
        self.dead += flow.dead
        if flow.warm_oldest_ms is not None:
            self.warm_oldest_ms = min(self.warm_oldest_ms, flow.warm_oldest_ms)
        if flow.cold_oldest_ms is not None:
            self.cold_oldest_ms = min(self.cold_oldest_ms, flow.cold_oldest_ms)


def flows(
    page: Page, snapshot: Snapshot, name: Callable[[str], str], labels: Labels, now_ms: int
) -> None:
    waiting: dict[tuple[str, str], _Waiting] = {}
    for flow in snapshot.flows:
        queue = name(flow.queue)
        key = queue, OTHER if queue == OTHER else labels.flow(queue, flow.flow)
        found = waiting.get(key)
        if found is None:
            found = waiting[key] = _Waiting()
        found.add(flow)
    text = "Items that wait, by flow and tier."
    counts = page.family("flow_items", "gauge", text)
    text = "How long ago the oldest of these was enqueued."
    ages = page.family("flow_oldest_age_seconds", "gauge", text)
    letters = page.family("flow_dead_items", "gauge", "Dead letters, by flow.")
    for key, found in waiting.items():
        inner = labels.of_flow(*key)[:-1]
        in_warm, in_cold = f'{inner},tier="warm"}}', f'{inner},tier="cold"}}'
        counts.add(in_warm, found.warm)
        counts.add(in_cold, found.cold)
        if found.warm_oldest_ms < math.inf:
            ages.add(in_warm, _age_s(found.warm_oldest_ms, now_ms))
        if found.cold_oldest_ms < math.inf:
            ages.add(in_cold, _age_s(found.cold_oldest_ms, now_ms))
        letters.add(f"{inner}}}", found.dead)
    _oldest_of_queues(page, snapshot, name, waiting, now_ms)


def _oldest_of_queues(
    page: Page,
    snapshot: Snapshot,
    name: Callable[[str], str],
    waiting: Mapping[tuple[str, str], _Waiting],
    now_ms: int,
) -> None:
    oldest = {name(queue): math.inf for queue in snapshot.report["queues"]}
    for (queue, _), found in waiting.items():
        at_ms = min(found.warm_oldest_ms, found.cold_oldest_ms)
        oldest[queue] = min(at_ms, oldest.get(queue, at_ms))
    text = "How long ago the oldest item was enqueued that waits in warm or cold; 0: none does."
    family = page.family("queue_oldest_age_seconds", "gauge", text)
    for queue, at_ms in oldest.items():
        family.add(labelled({"queue": queue}), _age_s(at_ms, now_ms))


def _age_s(at_ms: float, now_ms: int) -> float:
    """0 where there is none: nothing is infinitely old."""
    return max(0.0, (now_ms - at_ms) / 1000)
