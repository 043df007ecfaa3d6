"""Light and dark, a page without its daemon, tokens, and what an empty daemon shows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.seeing import Watch, go, go_and_stop_the_clock, is_wider_than_its_window
from tests.browser.world import World

READ, ADMIN = "read-0123456789abcdef", "admin-0123456789abcdef"
GROUND = "getComputedStyle(document.documentElement).backgroundColor"
LIGHT, DARK = "rgb(243, 245, 247)", "rgb(15, 21, 27)"


def test_system_preference_holds_until_the_switch_is_used(watched: Watch, world: World) -> None:
    page = watched.page(color_scheme="dark")
    go(page, world.page)
    assert page.evaluate(GROUND) == DARK
    page.emulate_media(color_scheme="light")
    assert page.evaluate(GROUND) == LIGHT
    page.get_by_role("button", name="Change to dark").click()
    assert page.evaluate(GROUND) == DARK
    page.reload()
    assert page.evaluate(GROUND) == DARK
    expect(page.get_by_role("button", name="Change to light")).to_be_visible()
    page.get_by_role("button", name="Change to light").click()
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(GROUND) == LIGHT


def test_item_view_fits_a_telephone(watched: Watch, world: World) -> None:
    with world.client() as client:
        (item, *_) = client.control("items.find", which={"queue": "search"})["items"]
    page = watched.page(width=400)
    go(page, f"{world.page}/items/{item['id']}#history")
    expect(page.locator("#timeline li").first).to_be_visible()
    assert not is_wider_than_its_window(page)
    page.get_by_role("tab", name="Overview").click()
    expect(page.locator("#payload")).to_be_visible()
    assert not is_wider_than_its_window(page)


def test_focus_can_be_seen(page: Page, world: World) -> None:
    go(page, world.page)
    for target in ("#filter", "th button[data-column='flow']", "#queue-table tbody tr", "summary"):
        page.locator(target).first.focus()
        page.keyboard.press("Shift")
        style = page.locator(target).first.evaluate(
            "element => getComputedStyle(element).outlineStyle"
        )
        assert style == "solid", target


def test_daemon_that_is_away_is_told_and_what_it_said_last_stays(
    own_world: World, watched: Watch
) -> None:
    watched.may_fail = True
    page = watched.page()
    go_and_stop_the_clock(page, own_world.page)
    own_world.host.stop()
    page.clock.run_for(5_100)
    notice = page.locator("#notice")
    expect(notice).to_contain_text("The daemon does not answer.")
    expect(notice).to_contain_text(re.compile(r"What stands here is of \d\d:\d\d:\d\d"))
    expect(page.locator("#figure-waiting [data-value]")).to_have_text("1,250")
    expect(page.locator("#queue-table tbody tr[data-key]")).to_have_count(4)
    muted = page.locator("#figure-waiting").evaluate("element => getComputedStyle(element).color")
    assert muted == "rgb(82, 96, 111)"
    page.clock.run_for(60_000)
    expect(page.locator("#freshness")).to_have_text(re.compile(r"^\d+ (s|min) old$"))


@pytest.fixture
def empty_world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path).started() as world:
        yield world


def test_nothing_waits(empty_world: World, page: Page) -> None:
    go(page, empty_world.page)
    expect(page.locator("#queue-empty")).to_have_text("Nothing is waiting.")
    expect(page.locator("#dead-empty")).to_be_visible()
    expect(page.locator("#figure-oldest")).to_contain_text("nothing is waiting")
    expect(page.locator("#spool-estimate")).to_have_text("empty")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A daemon that wants tokens."""
    directory = tmp_path_factory.mktemp("guarded")
    for name, token in (("read", READ), ("admin", ADMIN)):
        (directory / name).write_text(token)
        (directory / name).chmod(0o600)
    files = {
        "read_token_file": str(directory / "read"),
        "admin_token_file": str(directory / "admin"),
    }
    with World(directory, files, READ).running() as world:
        yield world


def test_token_is_asked_for_once_and_kept_for_the_tab(watched: Watch, guarded: World) -> None:
    watched.may_fail = True
    page = watched.page()
    page.goto(guarded.page)
    # Nothing of the queues is in the page before there is a token.
    assert "nightly" not in page.content()
    field = page.get_by_label("Token", exact=True)
    expect(field).to_be_focused()
    field.fill("wrong-0123456789abcdef")
    page.keyboard.press("Enter")
    expect(page.locator("#token-problem")).to_have_text("That token was not accepted.")
    field.fill(READ)
    page.keyboard.press("Enter")
    expect(page.locator("#queue-table tbody tr[data-key]")).to_have_count(4)
    expect(page.locator("#token-dialog")).to_be_hidden()
    page.reload()
    expect(page.locator("#queue-table tbody tr[data-key]")).to_have_count(4)
    assert page.evaluate("Object.keys(localStorage).length") == 0
    assert page.context.cookies() == []


def test_read_token_changes_nothing_and_is_told_so(watched: Watch, guarded: World) -> None:
    watched.may_fail = True
    page = watched.page()
    page.goto(guarded.page)
    page.get_by_label("Token", exact=True).fill(READ)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pause crm").click()
    expect(page.locator("#said")).to_contain_text("changes need the admin token")
    with guarded.client() as client:
        assert not client.control("queues.show", queue="crm")["is_paused"]
        (item, *_) = client.control("items.find", which={"queue": "search"})["items"]
    page.goto(f"{guarded.page}/schedules")
    page.get_by_role("button", name="Add a schedule").click()
    dialog = page.locator("#schedule-dialog")
    for label, text in (("Name", "mine"), ("Queue", "crm"), ("Period", "1d")):
        dialog.get_by_label(label).fill(text)
    page.keyboard.press("Enter")
    expect(dialog.locator(".problem")).to_contain_text("changes need the admin token")
    page.goto(f"{guarded.page}/items/{item['id']}")
    expect(page.locator("#payload-note")).to_have_text("This token does not show payloads.")
    expect(page.locator("#payload")).to_be_hidden()
