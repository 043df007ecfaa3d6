"""What /metrics shows of notifications: a handful of counters for each that is configured."""

from collections.abc import Mapping
from typing import Any

from daemon.http.prometheus.exposition import Page, labelled


def notices(page: Page, figures: Mapping[str, Any]) -> None:
    """`figures` as the notifier gives them."""
    for key, metric, text in (
        ("sent_total", "sent_notices", "Notices that somebody has taken."),
        ("failed_total", "failed_notices", "Notices that were given up."),
    ):
        for name, found in figures["by_name"].items():
            for way, number in found[key].items():
                page.counter(metric, text, number, labelled({"notification": name, "way": way}))
    text = "Failures that were told of in a notice with others."
    for name, found in figures["by_name"].items():
        label = labelled({"notification": name})
        page.counter("suppressed_incidents", text, found["suppressed_total"], label)
    text = "Failures that nobody was told of, because too many came at once."
    page.counter("dropped_incidents", text, figures["dropped_total"])
