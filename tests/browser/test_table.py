"""The Action Queues table: what it shows, sorting, filter, groups, the plugin, keys."""

import re

from playwright.sync_api import Page, expect

from tests.browser.seeing import Watch, column, is_wider_than_its_window
from tests.browser.world import World

ROWS = "#queue-table tbody tr[data-key]"


def opened(page: Page, world: World) -> None:
    page.goto(world.page)
    expect(page.locator(ROWS)).to_have_count(4)
    expect(page.locator("#freshness")).to_have_text("live")


def row(page: Page, *texts: str) -> str:
    return ROWS + "".join(f":has(td:text-is('{text}'))" for text in texts)


def test_table_shows_where_work_waits(page: Page, world: World) -> None:
    opened(page, world)
    nightly = page.locator(row(page, "nightly", "upsert"))
    cells = nightly.locator("td")
    expect(cells.nth(4)).to_have_text(re.compile(r"^(1,000|99\d)$"))
    expect(cells.nth(6)).to_have_text("1,200")
    expect(cells.nth(7)).to_have_text(re.compile(r"^\d+ (s|min)$"))
    expect(page.locator("#figure-waiting [data-value]")).to_have_text("1,250")
    heads = page.locator("#queue-table thead th")
    names = ["Flow", "Type", "Action", "Action Class", "Warm", "Cold", "Total", "Oldest"]
    expect(heads).to_have_text(names)


def test_table_is_there_without_javascript(watched: Watch, world: World) -> None:
    page = watched.page(java_script_enabled=False)
    page.goto(world.page)
    rows = page.locator("#queue-table tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.first.locator("td").nth(6)).to_have_text("1,200")
    expect(page.locator("#figure-waiting [data-value]")).to_have_text("1,250")
    expect(page.locator(".without-script")).to_contain_text("forebay top")
    expect(page.locator("#running")).to_be_hidden()


def test_every_column_sorts_both_ways(page: Page, world: World) -> None:
    opened(page, world)
    expect(column(page, "total")).to_have_text(["1,200", "40", "7", "3"])
    for name, first in {"flow": "ascending", "total": "descending", "warm": "descending"}.items():
        button = page.locator(f"#queue-table th button[data-column='{name}']")
        button.click()
        expect(page.locator(f"th[data-column='{name}']")).to_have_attribute("aria-sort", first)
        expect(page.locator("th[aria-sort]")).to_have_count(1)
    page.locator("th button[data-column='flow']").click()
    # Capitals do not come first.
    expect(column(page, "flow")).to_have_text(["Landing", "live", "nightly", "nightly"])
    page.locator("th button[data-column='flow']").click()
    expect(column(page, "flow")).to_have_text(["nightly", "nightly", "live", "Landing"])
    page.locator("th button[data-column='total']").click()
    expect(column(page, "total")).to_have_text(["1,200", "40", "7", "3"])
    page.locator("th button[data-column='total']").click()
    expect(column(page, "total")).to_have_text(["3", "7", "40", "1,200"])


def test_filter_wants_every_word(page: Page, world: World) -> None:
    opened(page, world)
    page.get_by_label("Filter the queues").fill("NIGHT ups")
    expect(page.locator(ROWS)).to_have_count(1)
    expect(page.locator("#queue-count")).to_have_text("1 of 4")
    page.get_by_label("Filter the queues").fill("nobody")
    expect(page.locator("#queue-empty")).to_have_text("No row has “nobody”.")
    expect(page.locator("#queue-list-empty")).to_be_visible()
    page.get_by_label("Filter the queues").fill("")
    expect(page.locator(ROWS)).to_have_count(4)


def test_filter_can_be_linked_to(page: Page, world: World) -> None:
    page.goto(f"{world.page}?filter=search")
    expect(page.locator(ROWS)).to_have_count(1)
    expect(page.locator("#queue-list > li")).to_have_count(1)


def test_groups_have_sums_and_open(page: Page, world: World) -> None:
    opened(page, world)
    page.get_by_role("button", name="Group by Action Class").click()
    group = page.locator("tr.group")
    expect(group).to_have_count(1)
    expect(page.locator(ROWS)).to_have_count(1)
    expect(group.locator("td").nth(0)).to_have_text("4 rows")
    expect(group.locator("td").nth(3)).to_have_text("pull")
    expect(group.locator("td").nth(6)).to_have_text("1,250")
    group.click()
    expect(group).to_have_attribute("aria-expanded", "true")
    expect(page.locator(ROWS)).to_have_count(5)
    group.click()
    expect(page.locator(ROWS)).to_have_count(1)
    page.get_by_role("button", name="Group by Action Class").click()
    expect(page.locator(ROWS)).to_have_count(4)


def test_plugin_is_shown_on_hover_and_focus(page: Page, world: World) -> None:
    opened(page, world)
    tip = page.locator("#tip")
    page.locator(ROWS).first.locator("td[data-column='class']").hover()
    expect(tip).to_be_visible()
    expect(tip).to_contain_text("forebayd")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.locator("#filter").hover()
    page.locator(ROWS).nth(1).focus()
    expect(tip).to_contain_text("forebayd")
    expect(page.locator(ROWS).nth(1)).to_have_attribute("aria-describedby", "tip")


def test_rows_are_reached_by_keys_alone(page: Page, world: World) -> None:
    opened(page, world)
    page.locator("#filter").focus()
    for _ in range(1 + 8 + 1):
        page.keyboard.press("Tab")
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("aria-rowindex", "2")
    page.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("aria-rowindex", "3")
    page.keyboard.press("End")
    expect(focused).to_have_attribute("aria-rowindex", "5")
    page.keyboard.press("Shift+Tab")
    expect(focused).to_have_attribute("data-column", "oldest")
    page.keyboard.press("Enter")
    expect(page.locator("th[data-column='oldest']")).to_have_attribute("aria-sort", "descending")


def test_groups_open_by_keys(page: Page, world: World) -> None:
    opened(page, world)
    page.locator("#group").focus()
    page.keyboard.press("Space")
    page.locator("tr.group").focus()
    page.keyboard.press("Enter")
    expect(page.locator(ROWS)).to_have_count(5)
    expect(page.locator("tr.group")).to_be_focused()


def test_nothing_scrolls_sideways_on_a_telephone(watched: Watch, world: World) -> None:
    page = watched.page(width=400)
    opened(page, world)
    page.locator("#running summary").click()
    page.get_by_role("button", name="Group by Action Class").click()
    page.locator("tr.group").click()
    assert not is_wider_than_its_window(page)
    card = page.locator(ROWS).nth(1)
    box = card.bounding_box()
    assert box is not None
    assert box["width"] <= 400
    assert box["height"] > 60, "a row is a card here"
