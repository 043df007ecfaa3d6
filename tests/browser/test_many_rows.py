"""5,000 rows: only those in sight are in the document, and all can be found, sorted and reached."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from forebay import encode_run
from tests.browser.seeing import column, go
from tests.browser.world import World

ROWS = 5_000
DRAWN = "#queue-table tbody tr[data-key]"
DRAWN_MAX = 100
EACH = ROWS // 10


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("crowded"))
    with world.started():
        with world.client() as client:
            # A run for each flow, many in flight.
            for number in range(ROWS):
                flow, payloads = f"flow-{number:04d}", [b"{}"] * (1 + number % 7)
                client.submit(encode_run(payloads, queue=f"q{number // EACH}", flow=flow))
            client.drain()
        world.until_shown(sum(1 + number % 7 for number in range(ROWS)))
        yield world


def test_rows_are_drawn_as_they_come_into_sight(page: Page, crowded: World) -> None:
    go(page, crowded.page)
    expect(page.locator("#queue-count")).to_have_text("5,000")
    assert 10 < page.locator(DRAWN).count() <= DRAWN_MAX
    page.locator("th button[data-column='flow']").click()
    expect(column(page, "flow").first).to_have_text("flow-0000")
    page.locator("#queue-box").evaluate("box => { box.scrollTop = box.scrollHeight / 2; }")
    expect(page.locator(DRAWN).filter(has_text="flow-2500")).to_be_visible()
    assert page.locator(DRAWN).count() <= DRAWN_MAX
    page.locator("#queue-box").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(page.locator(DRAWN).last.locator("td").first).to_have_text("flow-4999")
    page.get_by_label("Filter the queues").fill("flow-31 q6")
    expect(page.locator("#queue-count")).to_have_text("100 of 5,000")


def test_last_row_is_reached_by_keys(page: Page, crowded: World) -> None:
    go(page, crowded.page)
    page.locator("th button[data-column='flow']").click()
    page.locator(DRAWN).first.focus()
    page.keyboard.press("End")
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("aria-rowindex", str(ROWS + 1))
    page.keyboard.press("Home")
    expect(focused).to_have_attribute("aria-rowindex", "2")
    for _ in range(5):
        page.keyboard.press("PageDown")
    expect(focused).to_have_attribute("aria-rowindex", "77")


def test_first_view_has_the_longest_rows(page: Page, crowded: World) -> None:
    body = page.request.get(crowded.page).text()
    assert body.count('data-label="Flow"') == 200
    assert "The 200 longest of 5,000 rows" in body
