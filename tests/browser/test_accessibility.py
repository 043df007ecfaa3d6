"""Every view of the page, and its dialogs: named controls, headings in order, contrast in both
themes, focus that is seen and goes everywhere by keyboard."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import wrongs_of, wrongs_of_keys
from tests.browser.seeing import Watch, at_rest, go
from tests.browser.world import World


@pytest.fixture(scope="module")
def furnished(scheduled: World) -> Iterator[World]:
    """With one of each kind that can be changed."""
    trigger = {"type": "QUEUE", "queue": "a11y-in", "target": "crm", "polling_interval": "1d"}
    with scheduled.client() as client:
        client.control("trigger.add", name="a11y", settings=trigger)
        client.control("cron.add", name="a11y-each", settings={"queue": "crm", "every": "300d"})
        yield scheduled
        client.control("trigger.remove", name="a11y")
        client.control("cron.remove", name="a11y-each")


def test_queue_metrics(page: Page, world: World) -> None:
    go(page, world.page)
    at_rest(page)
    for part in page.locator("main summary").all():
        part.click()
    assert wrongs_of(page) == []
    assert wrongs_of_keys(page) == []


@pytest.mark.parametrize("view", ["schedules", "triggers"])
def test_catalogues_and_their_forms(page: Page, furnished: World, view: str) -> None:
    go(page, f"{furnished.page}/{view}?filter=a11y")
    at_rest(page)
    assert wrongs_of(page) == []
    assert wrongs_of_keys(page) == []
    page.get_by_role("button", name="Change a11y").click()
    dialog = page.locator("dialog:modal")
    expect(dialog).to_be_visible()
    at_rest(page)
    assert wrongs_of(page) == []
    assert wrongs_of_keys(page) == []
    # It is no trap: Escape leaves it, for where one came from.
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Change a11y")).to_be_focused()
    page.get_by_role("button", name="Delete a11y").click()
    assert wrongs_of(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_events(page: Page, furnished: World) -> None:
    go(page, f"{furnished.page}/events")
    at_rest(page)
    assert wrongs_of(page) == []
    assert wrongs_of_keys(page) == []


def test_item(page: Page, world: World) -> None:
    with world.client() as client:
        (item, *_) = client.control("items.find", which={"queue": "search"})["items"]
    go(page, f"{world.page}/items/{item['id']}")
    assert wrongs_of(page) == []
    assert wrongs_of_keys(page) == []
    page.get_by_role("tab", name="History").click()
    assert wrongs_of(page) == []


FAULTY = """<html><head><style>
  :root { color-scheme: light dark } button { outline: none !important }
  .pale { color: #999; background: #fff } .fine { color: #767676; background: #fff }
  @media (prefers-color-scheme: dark) { body { color: #555; background: #000 } }
</style></head><body><main><h1>One</h1><h3>Three</h3><p class="pale">pale</p>
<p class="fine">fine</p><button></button><button>Do</button><button>Do</button><span id="x"></span>
<span id="x"></span><input aria-labelledby="nobody"><a href="#" tabindex="3">first</a>
</main></body></html>"""


def test_what_is_wrong_is_found(watched: Watch) -> None:
    page = watched.page()
    page.set_content(FAULTY)
    found = wrongs_of(page)
    for text in (
        "the page does not say its language",
        "the page has no title",
        "heading Three leaves a level out",
        "two have the id x",
        "aria-labelledby of <input> leads nowhere",
        "<a> goes before its turn",
        "a button has no name",
        "a textbox has no name",
        "2 buttons are named Do",
        'light: "pale" in <p> has a contrast of 2.85',
        'dark: "One" in <h1> has a contrast of 2.82',
    ):
        assert text in found, found
    assert not any('"fine"' in wrong for wrong in found)
    assert any("focus is not seen on <button>" in wrong for wrong in wrongs_of_keys(page))
    page.set_content(FAULTY.replace("<input", "<input onkeydown='return false'"))
    assert any("can't be reached by Tab" in wrong for wrong in wrongs_of_keys(page))
