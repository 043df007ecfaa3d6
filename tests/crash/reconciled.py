"""What a daemon shows in /metrics adds up, and is what its books say.

    accepted + moved_in = delivered + dead + dropped + deleted + lost + held + moved_out

of each queue, at every scrape, whatever the daemon and its stores went through before. `check` asks
a daemon that is at rest until it shows what STATS has said: a scrape may be a second old.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families as parse

from daemon.http.prometheus.exposition import Page, QueueLines, labelled, text
from daemon.http.prometheus.families import books
from tests.eventually import at_once, eventually_sync

CAME: Final = ("accepted", "moved_in")
WENT: Final = ("delivered", "dead", "dropped", "deleted", "lost", "moved_out")
PLACES: Final = ("spooled", "scheduled", "warm", "cold", "running")
PATIENCE_S: Final = 60
OTHER: Final = "other"
"""Queues that are not configured are shown together."""

Shown = dict[str, dict[str, int]]


def reconciled(scraped: str) -> Shown:
    """By queue, the books that a scrape shows; fails where they do not add up."""
    found: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for metric in parse(scraped):
        name = metric.name.removeprefix("forebay_").removesuffix("_items")
        for sample in metric.samples:
            if name in CAME + WENT:
                found[sample.labels["queue"]][name] += int(sample.value)
            elif name == "held":
                found[sample.labels["queue"]][sample.labels["place"]] += int(sample.value)
    for queue, shown in found.items():
        came, went = (sum(shown[name] for name in names) for names in (CAME, WENT + PLACES))
        assert came == went, f"/metrics does not add up for {queue}: {dict(shown)}"
        assert min(shown.values()) >= 0, f"{queue}: {dict(shown)}"
    return {queue: dict(shown) for queue, shown in found.items()}


def check(state_dir: Path, stats: Mapping[str, Any]) -> None:
    """Every scrape of a daemon at rest adds up, and soon one shows what `stats` says."""
    address = (state_dir / "http.address").read_text().strip()
    with httpx.Client(base_url=address, trust_env=False, timeout=PATIENCE_S) as http:

        def shows_the_books() -> None:
            with at_once():
                shown = reconciled(http.get("/metrics").raise_for_status().text)
            wanted = by_label(stats["queues"], shown)
            assert shown == wanted, f"/metrics shows {shown}, and the books say {wanted}"

        eventually_sync(shows_the_books)


def reconcile_reports(reports: Iterable[Mapping[str, Any]]) -> None:
    """What daemons that have no HTTP would show of what they say in STATS adds up as well."""
    for report in reports:
        page, queues = Page(), report["queues"]
        labels = {queue: labelled({"queue": queue}) for queue in queues}
        QueueLines(books).add_to(page, queues, labels)
        reconciled(text(page.families.values(), is_open_metrics=False).decode())


def by_label(queues: Mapping[str, Mapping[str, int]], shown: Shown) -> Shown:
    """The books of STATS under the labels that /metrics gives to queues."""
    found: Shown = {}
    for queue, entry in queues.items():
        together = found.setdefault(queue if queue in shown else OTHER, {})
        for name in CAME + WENT + PLACES:
            together[name] = together.get(name, 0) + entry[name]
    return found
