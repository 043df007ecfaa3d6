"""/metrics of a real daemon: by the rules, and adding up."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.daemon.http.serving import Serving, serving_on
from tests.eventually import eventually_sync

NULL = {"handler": {"type": "null"}}
CONFIG = {
    "queues": {
        "done": NULL,
        "kept": {"warm_max_items": 10},
        "down": {
            "handler": {"type": "http", "url": "http://127.0.0.1:1/"},
            "max_retries": 0,
            "breaker": {"enabled": False},
        },
        "deleted": {},
        "lost": {},
    }
}
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
ETC = Path(__file__).parents[3] / "etc"
RULES = ETC / "prometheus-rules.yml"
LATER = {"forebay_refused_items_total", "forebay_retried_items_total"}
"""What is shown once there is some."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A daemon that has delivered, held, dropped and refused."""
    with serving_on(tmp_path_factory.mktemp("metrics"), CONFIG, rate_limit=0) as served:
        served.push("done", *map(str, range(30)))
        served.push("kept", *map(str, range(25)))
        served.push("down", "a", "b")
        served.push("nobody-defined-it", "a", "b", "c")
        eventually_sync(lambda: is_quiet(served))
        # What is shown may be a second old.
        died = ("connection", "down")
        eventually_sync(lambda: scrape(served).get("died_items_total", {}).get(died) == 2)
        yield served


def is_quiet(served: Serving) -> bool:
    with served.client() as client:
        stats = client.stats()
    queues = stats["queues"]
    return (
        not stats["daemon"]["spooled"]
        and queues["done"]["delivered"] == 30
        and queues["down"]["dead"] == 2
        and queues["kept"]["cold"] + queues["kept"]["warm"] == 25
    )


Values = dict[str, dict[tuple[str, ...], float]]


def scrape(served: Serving) -> Values:
    """By metric, by the values of the labels in the order of their names."""
    found: Values = {}
    answer = served.http.get("/metrics")
    assert answer.status_code == 200
    for metric in parse_text(answer.text):
        for sample in metric.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found.setdefault(sample.name.removeprefix("forebay_"), {})[labels] = sample.value
    return found


def test_it_is_a_route_and_no_redirect(serving: Serving) -> None:
    answer = serving.http.get("/metrics", follow_redirects=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_open_metrics_where_it_is_accepted(serving: Serving) -> None:
    answer = serving.http.get("/metrics", headers={"Accept": OPEN_METRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    parse: Callable[[str], Iterator[Metric]] = open_metrics_parser.text_string_to_metric_families
    names = {metric.name for metric in parse(answer.text)}
    assert {"forebay_accepted_items", "forebay_processing_duration_seconds"} <= names


def test_the_books_add_up_for_every_queue(serving: Serving) -> None:
    def shown() -> None:
        found = scrape(serving)
        queues = found["accepted_items_total"].keys()
        assert queues == {("done",), ("kept",), ("down",), ("other",)}
        for queue in queues:
            came = found["accepted_items_total"][queue] + found["moved_in_items_total"][queue]
            gone = sum(
                found[f"{fate}_items_total"][queue]
                for fate in ("delivered", "dropped", "deleted", "lost", "moved_out")
            )
            parts = found["held_items"].items()
            held = sum(items for (_, of_queue), items in parts if of_queue == queue[0])
            assert came == gone + found["dead_items"][queue] + held
        assert found["accepted_items_total"]["other",] == 3

    eventually_sync(shown)


def test_the_tiers_and_flows_are_shown(serving: Serving) -> None:
    def shown() -> None:
        found = scrape(serving)
        assert found["flow_items"]["", "kept", "warm"] == 10
        assert found["flow_items"]["", "kept", "cold"] == 15
        assert found["flow_oldest_age_seconds"]["", "kept", "cold"] >= 0
        assert found["queue_oldest_age_seconds"]["kept",] > 0
        assert found["warm_utilization_ratio"]["kept",] == 1
        assert found["warm_max_items"]["kept",] == 10

    eventually_sync(shown)


def test_delivery_is_shown(serving: Serving) -> None:
    def shown() -> None:
        found = scrape(serving)
        assert found["died_items_total"]["connection", "down"] == 2
        assert found["processing_duration_seconds_count"]["done",] == 30
        assert found["dequeue_latency_seconds_count"]["done",] == 30
        assert found["workers"]["done", "worker"] > 0
        assert found["send_latency_ewma_seconds"]["done",] > 0
        assert found["breaker_state"]["http://127.0.0.1:1", "closed"] == 1

    eventually_sync(shown)


def test_the_spool_and_the_stores_are_shown(serving: Serving) -> None:
    def shown() -> None:
        found = scrape(serving)
        assert found["spool_stored_runs_total"][()] == 4
        assert found["spool_flushes_total"][()] > 0
        assert found["spool_chunk_rotations_total"][()] == 1
        assert found["spool_meta_syncs_total"][()] > 0
        assert found["disk_available_bytes"][()] > 0
        assert found["store_up"] == {("cold",): 1, ("disk",): 1, ("warm",): 1}
        assert found["process_resident_memory_bytes"][()] > 0

    eventually_sync(shown)


def test_what_is_refused_is_counted_by_why(tmp_path: Path) -> None:
    config = {"auto_create_queues": False, "queues": {"done": NULL}}
    with serving_on(tmp_path, config, rate_limit=0) as served:
        assert served.host.command("push", "nowhere", stdin=b"a\nb").returncode != 0
        # What is shown may be a second old.
        refused = {("UNKNOWN_QUEUE",): 1}
        eventually_sync(lambda: scrape(served).get("refused_requests_total") == refused)


def test_promtool_has_nothing_to_say(serving: Serving) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    body = serving.http.get("/metrics").content
    done = subprocess.run(
        [promtool, "check", "metrics"], input=body, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_alerts_and_dashboard_ask_for_metrics_that_are_there(serving: Serving) -> None:
    shown = serving.http.get("/metrics").text
    names = set(re.findall(r"^(?:# TYPE )?(forebay_\w+)", shown, re.M)) | LATER
    for path in (RULES, ETC / "grafana-dashboard.json"):
        asked = set(re.findall(r"forebay_\w+", path.read_text())) - {"forebay_books"}
        assert asked
        assert asked <= names, path.name


def test_every_metric_is_documented(serving: Serving) -> None:
    documented = (ETC.parent / "docs" / "metrics.md").read_text()
    shown = re.findall(r"^# TYPE (forebay_\w+)", serving.http.get("/metrics").text, re.M)
    short = {name: re.sub(r"^forebay_.*_(?=\w+$)", "…_", name) for name in shown}
    missing = [name for name in shown if f"`{name}`" not in documented]
    unknown = [name for name in missing if f"`{short[name]}`" not in documented]
    assert not unknown, f"add rows to docs/metrics.md: {unknown}"


def test_the_rules_are_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "rules", str(RULES)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
