"""What the metrics keep from one second to the next is what would be made anew."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.metrics.books import Combined, with_tiers
from actors.metrics.flow_states import FlowStates
from actors.metrics.snapshot import FlowState, Snapshot, merge_flows
from actors.model.books import Totals
from actors.ports.tiers import ColdTotals, Fill, FlowCount, Limits, WarmFlow
from actors.spooler.report import make_entry
from actors.workers.group import Staff
from daemon.http import flow_entries
from daemon.http.flow_entries import FlowEntries, iso
from daemon.http.prometheus.exposition import text
from daemon.http.prometheus.families import Kept, families
from daemon.http.prometheus.label_values import Labels
from tests.daemon.http.test_metrics_families import NOW_MS, entry, figures, flow, snapshot

QUEUES = ("crm", "mail", "stray", "lost")
SECONDS = 6

few = st.integers(0, 2)
names = st.sampled_from(("", "f", 'g"\\\n'))
flow_states = st.builds(flow, st.sampled_from(QUEUES), names, few, few, few)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    def some(values: st.SearchStrategy[Any]) -> dict[str, Any]:
        return draw(st.dictionaries(st.sampled_from(QUEUES), values))

    books = some(st.builds(entry, accepted=few, warm=few))
    return snapshot(
        report={"queues": books},
        defined=frozenset(draw(st.sets(st.sampled_from(QUEUES[:3])))),
        fills=some(st.builds(Fill, few, few)),
        limits={queue: Limits(draw(st.integers(1, 2)), 9) for queue in books},
        flows=draw(st.lists(flow_states, max_size=5)),
        tallies=some(st.builds(figures, batches=few, retried=st.just({}) | st.just({"exit": 1}))),
        staff=some(st.builds(Staff, few, few, few, st.none() | st.just(0.5))),
    )


@given(st.lists(snapshots(), min_size=2, max_size=SECONDS))
@settings(max_examples=15, deadline=None)
def test_lines_that_were_kept_are_the_lines_of_this_snapshot(seconds: list[Snapshot]) -> None:
    kept, labels = Kept(), Labels()
    for shown in seconds:
        known = families(shown, labels, NOW_MS, kept)
        new = families(shown, labels, NOW_MS)
        assert text(known, is_open_metrics=False) == text(new, is_open_metrics=False)


tier_flows = st.tuples(st.sampled_from(QUEUES), names, st.just("a"))
warm_counts = st.dictionaries(tier_flows, st.tuples(few, few), max_size=6)
cold_counts = st.dictionaries(tier_flows, st.tuples(few, few), max_size=6)
oldest_times = st.dictionaries(tier_flows, st.integers(1, 9), max_size=6)


@given(st.lists(st.tuples(warm_counts, cold_counts), min_size=2, max_size=SECONDS), oldest_times)
@settings(max_examples=30, deadline=None)
def test_flows_that_were_kept_are_those_of_both_tiers(
    seconds: list[tuple[Mapping[Any, Any], Mapping[Any, Any]]], oldest: Mapping[Any, int]
) -> None:
    states = FlowStates()
    for number, (in_warm, in_cold) in enumerate(seconds):
        # It is read again now and then, and another object if it has changed.
        known = oldest if number < SECONDS / 2 else {}
        warm = [WarmFlow._make((*key, *counts, 7)) for key, counts in in_warm.items()]
        cold = [FlowCount._make((*key, *counts)) for key, counts in in_cold.items()]
        found = states.merged(warm, cold, known)
        assert found.flows == merge_flows(warm, cold, known)
        for queue in QUEUES:
            times = [f.oldest_ms for f in found.flows if f.queue == queue]
            assert found.oldest_ms.get(queue) == min(filter(None, times), default=None)


def test_flows_that_stay_are_the_same_objects() -> None:
    states, oldest = FlowStates(), {("a", "f", "x"): 5}
    cold = [FlowCount("a", "f", "x", 3, 0), FlowCount("b", "f", "x", 3, 0)]
    before = states.merged([], cold, oldest).flows
    after = states.merged([], [cold[0], cold[1]._replace(items=4)], oldest).flows
    assert after[0] is before[0]
    assert (after[1].cold, before[1].cold) == (4, 3)


journals = st.dictionaries(
    st.sampled_from(QUEUES), st.builds(Totals, accepted=st.integers(5, 6), handed_over=few)
)
in_cold = st.dictionaries(st.sampled_from(QUEUES), st.builds(ColdTotals, taken=few, held=few))
in_warm = st.dictionaries(st.sampled_from(QUEUES), st.builds(Fill, items=few, bytes=few))


@given(st.lists(st.tuples(journals, in_cold, in_warm), min_size=2, max_size=SECONDS))
@settings(max_examples=30, deadline=None)
def test_entries_that_were_kept_are_those_of_this_report(seconds: list[Any]) -> None:
    known: dict[str, Combined] = {}
    for journal, cold, fills in seconds:
        queues = {name: make_entry(books, 0, 0) for name, books in journal.items()}
        report: Any = {"queues": queues, "spool": {}}
        kept = with_tiers(report, cold, fills, known)
        assert kept == with_tiers(report, cold, fills)
        assert known.keys() == kept["queues"].keys()
        entries: list[Any] = list(kept["queues"].values())
        for key, value in kept["daemon"].items():
            assert value == sum(found[key] for found in entries)


class TestDetailed:
    def test_it_says_of_each_flow_what_waits_where(self) -> None:
        odd = FlowState("crm", 'a"b\\\n', "é", 3, 9, 1, NOW_MS - 5, NOW_MS - 60_001)
        empty = FlowState("crm", "dead", "", 0, 0, 2, None, None)
        found = json.loads(FlowEntries(told).render(snapshot(flows=[empty, odd])))
        at = iso(NOW_MS - 500)
        names = told("crm") | {"flowName": 'a"b\\\n', "actionName": "é", "timestamp": at}
        assert found == {
            "timestamp": at,
            "warm": [names | {"count": 3, "oldestQueuedAt": iso(NOW_MS - 5)}],
            "cold": [names | {"count": 9, "oldestQueuedAt": iso(NOW_MS - 60_001)}],
            "isPartial": False,
        }

    def test_what_is_kept_follows_counts_times_and_definitions(self) -> None:
        classes = {"crm": "http"}
        entries = FlowEntries(lambda queue: {"queue": queue, "actionClass": classes[queue]})
        for shown, cls in (
            (flow("crm", "f", 1, 0, 5), "http"),
            (flow("crm", "f", 2, 0, 9), "null"),
        ):
            classes["crm"] = cls
            (found,) = json.loads(entries.render(snapshot(flows=[shown])))["warm"]
            assert (found["count"], found["actionClass"]) == (shown.warm, cls)
            assert found["oldestQueuedAt"] == iso(shown.warm_oldest_ms or 0)

    def test_an_oldest_that_is_not_known_is_null(self) -> None:
        shown = FlowState("crm", "f", "a", 0, 4, 0, None, None)
        (found,) = json.loads(FlowEntries(told).render(snapshot(flows=[shown])))["cold"]
        assert found["oldestQueuedAt"] is None

    def test_past_the_limit_the_fullest_flows_are_listed(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(flow_entries, "FLOWS_MAX", 1)
        flows = [flow("crm", "small", warm=1), flow("crm", "large", cold=7)]
        found = json.loads(FlowEntries(told).render(snapshot(flows=flows)))
        assert (found["warm"], found["isPartial"]) == ([], True)
        assert [each["flowName"] for each in found["cold"]] == ["large"]


def told(queue: str) -> dict[str, str]:
    return {"queue": queue, "actionClass": "http", "flowType": "push"}
