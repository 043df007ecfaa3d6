"""The trigger part of /metrics: this daemon's QUEUE triggers."""

from collections.abc import Mapping

from daemon.http.prometheus.exposition import Page


def triggers(page: Page, figures: Mapping[str, int]) -> None:
    page.gauge("triggers", "QUEUE triggers of this daemon.", figures["triggers"])
    text = "Unfinished trigger jobs of all daemons that share the cold store."
    page.gauge("trigger_jobs", text, figures["jobs"])
    page.counter("trigger_made_jobs", "Jobs made by this daemon's triggers.", figures["jobs_total"])
    text = "Items claimed for jobs by this daemon's triggers."
    page.counter("trigger_claimed_items", text, figures["items_total"])
    text = "Trigger failures; the trigger waits longer after each."
    page.counter("trigger_failures", text, figures["failed_total"])
