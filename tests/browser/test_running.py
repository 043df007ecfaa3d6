"""The Running Tasks panel, and when the page asks: every 5 s, never while nobody sees it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.browser.seeing import Watch, at_rest, go_and_stop_the_clock, hide
from tests.browser.world import World
from tests.daemon.cli.commands import HANG_S

RUNNING = "/api/v2/metrics/queues/running"
TASKS = "#running-table tbody tr"
ALMOST_MS = 5 * 60_000 - 2_000


@contextmanager
def leased(world: World) -> Iterator[Any]:
    """An item of `search` in a consumer's hands; it goes back at the end."""
    with (
        world.client() as client,
        suppress(InterruptedError),
        client.lease("search", 2, wait_s=HANG_S, lease_s=3600) as items,
    ):
        yield items
        raise InterruptedError


def test_panel_is_closed_at_first_and_opens(page: Page, world: World) -> None:
    with leased(world) as items:
        page.goto(world.page)
        expect(page.locator("#running-count")).to_have_text("1")
        expect(page.locator("#running-table")).to_be_hidden()
        page.locator("#running summary").click()
        task = page.locator(TASKS)
        expect(task).to_have_count(1)
        expect(task.locator("td[data-column='items']")).to_have_text("2")
        expect(task.locator("td[data-column='duration']")).to_have_text(re.compile(r"^\d+:\d\d$"))
        expect(task.locator("td[data-column='worker']")).not_to_be_empty()
        link = task.get_by_role("link")
        expect(link).to_have_text(items[0].id)
        link.click()
        expect(page.locator("#item-state")).to_have_text("RUNNING")


def test_nothing_runs(page: Page, world: World) -> None:
    page.goto(world.page)
    page.locator("#running summary").click()
    expect(page.locator("#running-empty")).to_be_visible()
    expect(page.locator("#running-empty")).to_have_text("Nothing is running.")


def test_panel_opens_by_keys(page: Page, world: World) -> None:
    page.goto(world.page)
    page.locator("#running summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#running-empty")).to_be_visible()


def test_task_over_5_minutes_is_highlighted(page: Page, world: World) -> None:
    def older(route: Route) -> None:
        """The daemon's own answer, of a task that began almost 5 minutes earlier."""
        answer = route.fetch()
        body = answer.json()
        for task in body["tasks"]:
            task["runningForMs"] = ALMOST_MS
        route.fulfill(response=answer, json=body)

    page.route(f"**{RUNNING}", older)
    with leased(world):
        go_and_stop_the_clock(page, world.page)
        page.locator("#running summary").click()
        task = page.locator(TASKS)
        expect(task).to_have_count(1)
        expect(task).not_to_have_class(re.compile("long"))
        plain = task.evaluate("row => getComputedStyle(row.cells[4]).backgroundColor")
        page.clock.run_for(3_000)
        expect(task).to_have_class(re.compile("long"))
        expect(page.locator("#running-long")).to_have_text("1 over 5 min")
        assert task.evaluate("row => getComputedStyle(row.cells[4]).backgroundColor") != plain


def test_page_asks_every_5_seconds_and_not_while_hidden(watched: Watch, world: World) -> None:
    page = watched.page()
    go_and_stop_the_clock(page, world.page)
    for _ in range(2):
        before = watched.asked(RUNNING)
        page.clock.run_for(4_000)
        assert watched.asked(RUNNING) == before
        with page.expect_response(lambda answer: RUNNING in answer.url):
            page.clock.run_for(1_100)
        at_rest(page)
    hide(page, True)
    expect(page.locator("#freshness")).to_have_text("paused")
    before = len(watched.requests)
    page.clock.run_for(60_000)
    assert len(watched.requests) == before
    with page.expect_response(lambda answer: RUNNING in answer.url):
        hide(page, False)
    expect(page.locator("#freshness")).to_have_text("live")
