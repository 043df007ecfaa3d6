"""The events view, end to end with the daemon: what it shows, by kind, and as it happens."""

import re

from playwright.sync_api import Page, expect

from tests.browser.seeing import Watch, go, go_and_stop_the_clock, is_wider_than_its_window
from tests.browser.world import World

ROWS = "#events-table tbody tr"


def test_events_are_shown_by_kind_and_as_they_happen(page: Page, scheduled: World) -> None:
    go(page, f"{scheduled.page}/events")
    started = page.locator(ROWS).last
    expect(started).to_contain_text("The daemon")
    expect(started).to_contain_text("has started")
    expect(started).to_contain_text(re.compile(r"\d+ (s|min) ago"))
    # A queue that gets workers, while the page looks.
    scheduled.push("notes", 1)
    first = page.locator(ROWS).first
    expect(first.locator("[data-column='about'] a")).to_have_text("notes")
    expect(first).to_contain_text(re.compile(r"is delivered to .* by \d+ workers"))
    before = page.locator(ROWS).count()
    page.get_by_label("Kind of event").select_option(label="The daemon (1)")
    expect(page.locator(ROWS)).to_have_count(1)
    expect(page.locator("#events-count")).to_have_text("1")
    assert page.url.endswith("/events?kind=daemon")
    page.reload()
    expect(page.locator(ROWS)).to_have_count(1)
    page.get_by_label("Kind of event").select_option("")
    expect(page.locator(ROWS)).to_have_count(before)
    page.get_by_label("Filter the events").fill("notes workers")
    expect(page.locator(ROWS)).to_have_count(1)
    page.get_by_label("Filter the events").fill("nothing like it")
    expect(page.locator("#events-empty")).to_have_text("Nothing has “nothing like it”.")


def test_what_is_known_is_not_asked_for_again(watched: Watch, scheduled: World) -> None:
    page = watched.page(width=400)
    # There is more than the first event: a queue gets workers.
    scheduled.push("cards", 1)
    go(page, f"{scheduled.page}/events")
    expect(page.locator(ROWS).nth(1)).to_be_visible()
    go_and_stop_the_clock(page, f"{scheduled.page}/events")
    assert not is_wider_than_its_window(page)
    rows = page.locator(ROWS).count()
    asked = [url for url in watched.requests if "/events/recent" in url]
    assert asked[0].endswith("&after=0")
    with page.expect_response(lambda answer: "/events/recent" in answer.url) as answered:
        page.clock.run_for(5_100)
    # The latest comes once more: another life of the daemon has another one of that number.
    assert int(answered.value.url.rpartition("=")[2]) == answered.value.json()["latest"] - 1 > 0
    assert page.locator(ROWS).count() == rows


WORDS = """async (events) => {
  const here = document.querySelector("script[type=module]").src;
  const { told } = await import(new URL("event_words.js", here));
  return events.map(told).map(({ about, text, tone }) => [about, text, tone]);
}"""


def test_each_kind_of_event_is_told_in_words(page: Page, scheduled: World) -> None:
    page.goto(f"{scheduled.page}/events")
    crm = "https://crm.example"
    events = {
        ("breaker", "open", 5, "503"): [crm, "is open after 5 failures: 503", "bad"],
        ("breaker", "half_open", 5, None): [crm, "is tried", "warn"],
        ("breaker", "closed", 0, None): [crm, "is closed", "good"],
        ("store", "away", None, None): [crm, "does not answer", "bad"],
        ("store", "back", None, None): [crm, "is back", "good"],
        ("trigger", "failed", None, "no"): [crm, "has failed: no", "bad"],
        ("notice", "dead", 1, "400"): [crm, "tells of 1 item of mail: 400", "warn"],
        ("notice", "not_sent", 2, "no"): [crm, "could not tell of 2 items of mail: no", "bad"],
        ("daemon", "draining", None, None): ["forebay", "drains", "warn"],
        ("lost", None, 1234, None): ["event log", "1,234 events were not written", "warn"],
        ("new", "odd", None, None): [crm, "odd", "plain"],
    }  # fmt: skip
    asked = [
        {"kind": kind, "state": state, "count": count, "error": error}
        | {"destination": crm, "queue": "mail"}
        for kind, state, count, error in events
    ]
    assert page.evaluate(WORDS, asked) == list(events.values())
