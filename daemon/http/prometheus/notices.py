"""The notification part of /metrics: a few counters per configured notification."""

from collections.abc import Mapping
from typing import Any

from daemon.http.prometheus.exposition import Page, labelled


def notices(page: Page, figures: Mapping[str, Any]) -> None:
    """`figures` as the notifier reports them."""
    for key, metric, text in (
        ("sent_total", "sent_notices", "Notices that the receiver accepted."),
        ("failed_total", "failed_notices", "Notices given up after failed attempts."),
    ):
        for name, found in figures["by_name"].items():
            for way, number in found[key].items():
                page.counter(metric, text, number, labelled({"notification": name, "way": way}))
    text = "Failures reported together with others in one notice."
    for name, found in figures["by_name"].items():
        label = labelled({"notification": name})
        page.counter("suppressed_incidents", text, found["suppressed_total"], label)
    text = "Failures without a notice because too many came at once."
    page.counter("dropped_incidents", text, figures["dropped_total"])
