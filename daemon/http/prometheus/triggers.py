"""The families about QUEUE triggers, as this daemon runs them."""

from collections.abc import Mapping

from daemon.http.prometheus.exposition import Page


def triggers(page: Page, figures: Mapping[str, int]) -> None:
    page.gauge("triggers", "QUEUE triggers of this daemon.", figures["triggers"])
    text = "Jobs of triggers that are not done, of all daemons of the cold store."
    page.gauge("trigger_jobs", text, figures["jobs"])
    page.counter("trigger_made_jobs", "Jobs that it has made.", figures["jobs_total"])
    text = "Items that it has claimed for them."
    page.counter("trigger_claimed_items", text, figures["items_total"])
    text = "Failures of triggers; after each the trigger waits longer."
    page.counter("trigger_failures", text, figures["failed_total"])
