"""What /metrics says: names and units by the rules, bounded labels, and sums that add up."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from actors.breaker.breaker import BreakerFigures
from actors.metrics.snapshot import FlowState, QueueFigures, Snapshot, freeze, merge_flows
from actors.observers.tallies import QueueTally
from actors.ports.tiers import Fill, FlowCount, Limits, WarmFlow
from actors.spooler.upkeep import SpoolCounts
from actors.workers.group import Staff
from daemon.http.prometheus import label_values
from daemon.http.prometheus.exposition import Exposition, escaped, negotiate, text
from daemon.http.prometheus.families import families
from daemon.http.prometheus.label_values import Labels

NOW_MS = 1_700_000_000_000
parse_open: Callable[[str], Iterator[Metric]] = open_metrics_parser.text_string_to_metric_families
"""Typed here: the library's is not."""
UNITS = {
    "seconds",
    "bytes",
    "items",
    "runs",
    "rows",
    "chunks",
    "ratio",
    "batches",
    "leases",
    "requests",
    "ticks",
    "notices",
    "errors",
    "incidents",
    "jobs",
}
WITHOUT_UNITS = {
    "answers_suspect",
    "build_info",
    "store_up",
    "store_away",
    "connections",
    "schedules",
    "triggers",
    "trigger_failures",
    "sends_in_flight",
    "sends_waiting",
    "failover_entries",
    "failover_let_go",
    "stale_outcomes",
    "events_written",
    "events_dropped",
    "spool_flushes",
    "spool_chunk_rotations",
    "spool_chunks_abandoned",
    "spool_meta_syncs",
    "workers",
    "workers_active",
    "breaker_state",
    "breaker_opened",
    "breaker_rejected",
    "breaker_failures",
}
"""What is counted says what it is."""


def entry(**given: int) -> dict[str, int]:
    names = [
        "accepted",
        "delivered",
        "dead",
        "dropped",
        "deleted",
        "lost",
        "duplicate",
        "moved_in",
        "moved_out",
        "held",
        "spooled",
        "scheduled",
        "warm",
        "cold",
        "running",
        "staged",
    ]
    return dict.fromkeys(names, 0) | given


def figures(**given: Any) -> QueueFigures:
    tally = QueueTally()
    tally.processing.add(0.2, 10)
    tally.dequeue.add(30.0, 10)
    return replace(freeze(tally), **given)


def flow(queue: str, name: str, warm: int = 0, cold: int = 0, age_s: int = 0) -> FlowState:
    at_ms = NOW_MS - age_s * 1000
    return FlowState(
        queue, name, "a", warm, cold, 0, at_ms if warm else None, at_ms if cold else None
    )


def snapshot(**given: Any) -> Snapshot:
    spool = "runs bytes disk_bytes chunks spare_chunks memory_runs memory_bytes"
    report: dict[str, Any] = {
        "queues": {"crm": entry(accepted=5, held=3, warm=3, delivered=2)},
        "spool": dict.fromkeys(spool.split(), 1)
        | {"quarantine_bytes": 0, "free_bytes": 9, "min_free_bytes": 2, "max_bytes": 4},
        "failover": {"entries": 0, "bytes": 0, "let_go_total": 0},
        "events": {"written_total": 0, "dropped_total": 0},
        "stale_outcomes_total": 0,
        "away_total": {"cold": 2, "warm": 0},
        "warm_repaired_total": 0,
        "history_dropped_total": 0,
        "internal_errors_total": 0,
        "cron": {"schedules": 0, "installed_total": 0, "missed_total": 0},
        "triggers": {
            "triggers": 0,
            "jobs": 0,
            "jobs_total": 0,
            "items_total": 0,
            "failed_total": 0,
        },
        "notifications": {
            "dropped_total": 1,
            "by_name": {
                "pager": {
                    "suppressed_total": 2,
                    "sent_total": {"webhook": 3},
                    "failed_total": {"webhook": 4},
                }
            },
        },
    }
    report |= given.pop("report", {})
    counts = SpoolCounts(runs=3)
    counts.refused["QUEUE_FULL"] = 4
    counts.dropped["drop_oldest"] = 2
    whole: dict[str, Any] = {
        "at_ms": NOW_MS - 500,
        "report": report,
        "defined": frozenset({"crm"}),
        "fills": {"crm": Fill(3, 300)},
        "limits": {queue: Limits(10, 600) for queue in report["queues"]},
        "flows": [flow("crm", "signup", warm=3, age_s=60)],
        "tallies": {"crm": figures(retried={"timeout": 2}, retry_failures={}, died={"exit": 1})},
        "staff": {"crm": Staff(4, 1, 0, 0.25)},
        "breakers": {"http://crm": BreakerFigures("open", 5, 2, 1, 0, 0, 0, 7)},
        "spool": counts,
        "stores": {"cold": True, "disk": False},
        "ingest": {"connections": 1, "in_flight_bytes": 0, "refused": {"BAD_RUN": 2}},
        "sends_in_flight": 1,
        "sends_waiting": 0,
        "pull_leases": 0,
    } | given
    return Snapshot(**whole)


def scraped(shown: Snapshot, labels: Labels | None = None) -> dict[str, Metric]:
    body = text(families(shown, labels or Labels(), NOW_MS), is_open_metrics=False)
    return {metric.name: metric for metric in parse_text(body.decode())}


def values(metric: Metric, *names: str) -> dict[Any, float]:
    """By the values of these labels, or of the only one."""
    found = {tuple(s.labels[name] for name in names): s.value for s in metric.samples}
    return {key[0] if len(key) == 1 else key: value for key, value in found.items()}


def all_metrics() -> Iterator[Metric]:
    yield from scraped(snapshot()).values()


class TestConventions:
    @pytest.mark.parametrize("metric", list(all_metrics()), ids=lambda metric: metric.name)
    def test_names_say_what_is_measured_in_which_unit(self, metric: Metric) -> None:
        assert re.fullmatch(r"forebay_[a-z][a-z0-9_]*[a-z]", metric.name)
        assert metric.documentation.endswith(".")
        name = metric.name.removeprefix("forebay_")
        assert name in WITHOUT_UNITS or name.split("_")[-1] in UNITS, (
            f"{name}: end it with a unit of UNITS, or add it to WITHOUT_UNITS"
        )
        for sample in metric.samples:
            if metric.type == "counter":
                assert sample.name == f"{metric.name}_total"
            else:
                assert not sample.name.endswith("_total")

    def test_both_formats_say_the_same(self) -> None:
        found = families(snapshot(), Labels(), NOW_MS)
        plain = parse_text(text(found, is_open_metrics=False).decode())
        open_metrics = parse_open(text(found, is_open_metrics=True).decode() + "# EOF\n")
        assert {(m.name, m.type): m.samples for m in plain} == {
            (m.name, m.type): m.samples for m in open_metrics
        }

    def test_every_family_is_there_once_and_together(self) -> None:
        body = text(families(snapshot(), Labels(), NOW_MS), is_open_metrics=False).decode()
        typed = re.findall(r"^# TYPE (\S+)", body, re.M)
        assert len(typed) == len(set(typed))
        order = [line.split("{")[0].split(" ")[0] for line in body.splitlines() if line[0] != "#"]
        bases = [re.sub(r"_(bucket|count|sum)$", "", name) for name in order]
        assert len([b for i, b in enumerate(bases) if i == 0 or bases[i - 1] != b]) == len(
            set(bases)
        )

    def test_labels_are_escaped(self) -> None:
        odd = 'a"b\\c\nd \ud800'
        found = scraped(snapshot(flows=[flow("crm", odd, warm=1)]))
        names = {sample.labels["flow"] for sample in found["forebay_flow_items"].samples}
        assert names == {'a"b\\c\nd ?'}
        assert escaped("plain") == "plain"


class TestFormats:
    @pytest.mark.parametrize(
        "accept, kind",
        [
            ("", "text/plain; version=0.0.4"),
            ("*/*", "text/plain; version=0.0.4"),
            ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
            ("application/openmetrics-text;version=nonsense", "application/openmetrics-text"),
            ("text/plain;version=0.0.4;q=0.3, Application/OpenMetrics-Text;q=0.9", "application/"),
        ],
    )
    def test_the_request_chooses(self, accept: str, kind: str) -> None:
        assert negotiate(accept).startswith(kind)
        body = Exposition().render(families(snapshot(), Labels(), NOW_MS), negotiate(accept))
        is_open_metrics = kind.startswith("application")
        assert body.endswith(b"# EOF\n") == is_open_metrics
        parse = parse_open if is_open_metrics else parse_text
        names = {metric.name for metric in parse(body.decode())}
        assert {"forebay_accepted_items", "process_cpu_seconds"} <= names


class TestLabels:
    def test_queues_that_nobody_defined_are_other_and_still_add_up(self) -> None:
        queues = {
            "crm": entry(accepted=5, cold=5, held=5),
            "stray": entry(accepted=7, warm=7, held=7),
            "lost": entry(accepted=11, cold=11, held=11),
        }
        shown = snapshot(
            report={"queues": queues},
            fills={"stray": Fill(7, 70)},
            flows=[
                flow("crm", "f", cold=5, age_s=1),
                flow("stray", "g", warm=7, age_s=9),
                flow("lost", "h", cold=11, age_s=30),
            ],
            tallies={queue: figures(batches=1, retried={"exit": 1}) for queue in queues},
            staff={queue: Staff(4, 1, 0, None) for queue in queues},
        )
        found = scraped(shown)
        for metric in found.values():
            for sample in metric.samples:
                assert sample.labels.get("queue", "crm") in ("crm", "other")
        assert values(found["forebay_accepted_items"], "queue") == {"crm": 5, "other": 18}
        held = values(found["forebay_held_items"], "queue", "place")
        assert (held["other", "warm"], held["other", "cold"]) == (7, 11)
        assert values(found["forebay_flow_items"], "queue", "flow", "tier") == {
            ("crm", "f", "warm"): 0,
            ("crm", "f", "cold"): 5,
            ("other", "other", "warm"): 7,
            ("other", "other", "cold"): 11,
        }
        ages = values(found["forebay_queue_oldest_age_seconds"], "queue")
        assert ages == {"crm": 1, "other": 30}
        assert values(found["forebay_sent_batches"], "queue")["other"] == 2
        assert values(found["forebay_retried_items"], "queue", "error")["other", "exit"] == 2
        assert values(found["forebay_workers"], "queue", "role")["other", "worker"] == 8
        counts = {
            sample.labels["queue"]: sample.value
            for sample in found["forebay_processing_duration_seconds"].samples
            if sample.name.endswith("_count")
        }
        assert counts == {"crm": 10, "other": 20}

    def test_a_queues_flows_are_bounded_and_keep_their_labels(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(label_values, "FLOWS_MAX", 2)
        labels = Labels()

        def shown(*names: str) -> dict[Any, float]:
            flows = [flow("crm", name, warm=1, age_s=5) for name in names]
            found = scraped(snapshot(flows=flows), labels)["forebay_flow_items"]
            warm = [s for s in found.samples if s.labels["tier"] == "warm"]
            return {sample.labels["flow"]: sample.value for sample in warm}

        assert shown("b", "c") == {"b": 1, "c": 1}
        assert shown("a", "b", "c", "d") == {"b": 1, "c": 1, "other": 2}
        labels.keep([])
        assert shown("a", "b", "c") == {"a": 1, "b": 1, "other": 1}

    def test_destinations_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(label_values, "DESTINATIONS_MAX", 1)
        breakers = {
            name: BreakerFigures("open", 2, 0, 3, 0, 0, 0, 1) for name in ("one", "two", "three")
        }
        found = scraped(snapshot(breakers=breakers))
        assert values(found["forebay_breaker_opened"], "destination") == {"one": 3, "other": 6}
        state = values(found["forebay_breaker_state"], "destination", "state")
        assert (state["one", "open"], state["other", "open"], state["one", "closed"]) == (1, 2, 0)


class TestFamilies:
    def test_the_spool_and_what_it_refused(self) -> None:
        found = scraped(snapshot())
        assert found["forebay_spool_utilization_ratio"].samples[0].value == 0.25
        assert found["forebay_disk_available_bytes"].samples[0].value == 9
        assert values(found["forebay_refused_items"], "reason") == {"QUEUE_FULL": 4}
        assert values(found["forebay_spool_dropped_items"], "reason") == {"drop_oldest": 2}
        assert values(found["forebay_store_up"], "store") == {"cold": 1, "disk": 0}
        assert values(found["forebay_store_away"], "store") == {"cold": 2, "warm": 0}

    def test_histograms_count_items(self) -> None:
        found = scraped(snapshot())["forebay_dequeue_latency_seconds"]
        buckets = {s.labels["le"]: s.value for s in found.samples if "le" in s.labels}
        assert buckets["16.0"] == 0
        assert buckets["64.0"] == buckets["+Inf"] == 10
        assert len(buckets) == 13
        (total,) = [s.value for s in found.samples if s.name.endswith("_sum")]
        assert total == 300.0

    def test_warm_is_as_full_as_its_fuller_limit(self) -> None:
        found = scraped(snapshot())
        assert values(found["forebay_warm_utilization_ratio"], "queue") == {"crm": 0.5}

    def test_split_workers_are_senders_and_preparers(self) -> None:
        found = scraped(snapshot(staff={"crm": Staff(6, 2, 3, 0.1)}))
        assert values(found["forebay_workers"], "queue", "role") == {
            ("crm", "sender"): 6,
            ("crm", "preparer"): 3,
        }
        assert values(found["forebay_workers_active"], "queue") == {"crm": 2}

    def test_an_idle_daemon_shows_no_empty_family(self) -> None:
        nothing: dict[str, Any] = {"queues": {}}
        shown = snapshot(report=nothing, limits={}, flows=[], tallies={}, staff={}, breakers={})
        assert all(metric.samples for metric in scraped(shown).values())


class TestMergedFlows:
    def test_what_is_in_warm_is_not_counted_as_cold_again(self) -> None:
        warm = [WarmFlow("q", "f", "a", waiting=3, from_cold=5, oldest_ms=10)]
        cold = [FlowCount("q", "f", "a", items=20, dead=1), FlowCount("q", "g", "a", 4, 0)]
        oldest = {("q", "f", "a"): 7, ("q", "g", "a"): 8}
        assert merge_flows(warm, cold, oldest) == [
            FlowState("q", "f", "a", 3, 15, 1, 10, 7),
            FlowState("q", "g", "a", 0, 4, 0, None, 8),
        ]

    def test_a_moment_in_which_they_disagree_shows_nothing_below_zero(self) -> None:
        warm = [WarmFlow("q", "f", "a", waiting=0, from_cold=5, oldest_ms=None)]
        cold = [FlowCount("q", "f", "a", items=3, dead=0)]
        assert merge_flows(warm, cold, {("q", "f", "a"): 7}) == []
