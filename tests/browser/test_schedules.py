"""The schedules view, end to end with the daemon: what it shows, run now, enable and disable, add,
delete; and what two hundred schedules cost. Each test that changes one has one of its own."""

import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from forebay.errors import Refused
from tests.browser.seeing import (
    Watch,
    at_rest,
    go,
    go_and_stop_the_clock,
    hide,
    is_wider_than_its_window,
)
from tests.browser.world import World

SCHEDULES = "/api/v2/schedules"
DRAWN = 40
ROWS = "#schedules-table tbody tr"
MOMENTS = """async ([lists, zone, now]) => {
  const here = document.querySelector("script[type=module]").src;
  const { moments, until, knownZone } = await import(new URL("moments.js", here));
  return { moments: lists.map((times) => moments(times, zone, now)),
    untils: [now - 5000, now + 999, now + 90_000].map((ms) => until(ms, now)),
    zones: ["Europe/Berlin", "Mars/Olympus"].map(knownZone) };
}"""


def opened(page: Page, world: World, text: str = "") -> None:
    go(page, f"{world.page}/schedules")
    if text:
        page.get_by_label("Filter the schedules").fill(text)
    at_rest(page)


def row(page: Page, name: str) -> Locator:
    return page.locator(f"{ROWS}[data-key='{name}']")


def control(world: World, operation: str, **fields: Any) -> dict[str, Any]:
    with world.client() as client:
        return client.control(operation, **fields)


def ticks_asked_for(watched: Watch) -> int:
    return sum("/next?" in url for url in watched.requests)


def test_next_ticks_stand_in_the_schedules_own_zone(page: Page, scheduled: World) -> None:
    opened(page, scheduled, "new-year")
    ticks = control(scheduled, "cron.next", name="new-year")["ticks_ms"]
    years = [datetime.fromtimestamp(ms / 1000, ZoneInfo("Asia/Tokyo")).year for ms in ticks]
    found = row(page, "new-year")
    expect(found.locator(".next")).to_contain_text(f"1 Jan {years[0]} 02:30 · in ")
    later = " · ".join(f"1 Jan {year} 02:30" for year in years[1:4])
    expect(found.locator(".later")).to_have_text(later)
    expect(found.locator("[data-column='grid']")).to_have_text("30 2 1 1 *Asia/Tokyo")
    expect(found.locator("[data-column='missed']")).to_have_text("run the last")
    expect(found.locator(".chip")).to_have_text("enabled")
    # It is the configuration file's: it can be run here, and nothing else.
    assert found.get_by_role("button").all_inner_texts() == ["Run now"]
    expect(found).to_contain_text("set in the configuration file")
    expect(page.get_by_role("link", name="Schedules")).to_have_attribute("aria-current", "page")


def test_run_now_pushes_an_item_that_can_be_looked_at(page: Page, scheduled: World) -> None:
    settings = {"queue": "by-hand", "every": "300d", "payload": {"job": "reindex"}}
    control(scheduled, "cron.add", name="hand", settings=settings)
    # Its next ticks.
    scheduled.host.until_books({"accepted": 4, "held": 4}, "by-hand")
    opened(page, scheduled, "hand")
    page.get_by_role("button", name="Run hand now").click()
    page.keyboard.press("Escape")
    expect(page.locator("#confirm-dialog")).to_be_hidden()
    assert scheduled.host.books("by-hand")["accepted"] == 4
    page.get_by_role("button", name="Run hand now").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("hand was run: its item is in by-hand.")
    scheduled.host.until_books({"accepted": 5, "held": 5}, "by-hand")
    row(page, "hand").get_by_role("link", name="its item").click()
    expect(page.locator("#payload")).to_have_text('{\n  "job": "reindex"\n}')
    page.locator("#item-about").get_by_role("link", name="hand", exact=True).click()
    expect(page.locator(ROWS)).to_have_count(1)
    expect(row(page, "hand")).to_be_visible()


def test_schedule_is_disabled_and_enabled_by_keys(page: Page, scheduled: World) -> None:
    control(scheduled, "cron.add", name="switched", settings={"queue": "jobs", "every": "300d"})
    opened(page, scheduled, "switched")
    page.get_by_role("button", name="Disable switched").focus()
    page.keyboard.press("Enter")
    expect(row(page, "switched").locator(".chip")).to_have_text("disabled")
    expect(row(page, "switched").locator(".next")).to_have_text("–")
    assert not control(scheduled, "cron.show", name="switched")["enabled"]
    expect(page.get_by_role("button", name="Enable switched")).to_be_focused()
    page.keyboard.press("Enter")
    expect(row(page, "switched").locator(".chip")).to_have_text("enabled")
    expect(row(page, "switched").locator(".later")).not_to_be_empty()
    assert control(scheduled, "cron.show", name="switched")["enabled"]


def test_schedule_is_added_and_deleted(watched: Watch, scheduled: World) -> None:
    watched.may_fail = True
    page = watched.page(width=400)
    opened(page, scheduled, "added")
    expect(page.locator("#schedules-empty")).to_have_text("Nothing has “added”.")
    page.get_by_role("button", name="Add a schedule").click()
    dialog = page.locator("#schedule-dialog")
    dialog.get_by_label("Name").fill("added")
    dialog.get_by_label("Queue").fill("jobs")
    dialog.get_by_label("as cron has it").check()
    expect(dialog.get_by_label("Period")).to_be_hidden()
    dialog.get_by_label("Expression").fill("61 * * * *")
    dialog.get_by_label("Time zone").fill("Europe/Berlin")
    dialog.get_by_label("Payload").fill('{"job": "close"}')
    page.keyboard.press("Tab")
    dialog.get_by_role("button", name="Add", exact=True).click()
    # The daemon's words, beside what was written.
    problem = dialog.locator("#schedule-dialog-cron-problem")
    expect(problem).to_have_text(re.compile("^'61 [*] [*] [*] [*]' is not a valid cron expression"))
    expect(dialog.get_by_label("Expression")).to_be_focused()
    expect(dialog.get_by_label("Expression")).to_have_attribute("aria-invalid", "true")
    expect(dialog.get_by_label("Name")).to_have_value("added")
    dialog.get_by_label("Expression").fill("0 18 * * 5")
    expect(problem).to_have_count(0)
    dialog.get_by_label("Expression").press("Enter")
    expect(dialog).to_be_hidden()
    expect(row(page, "added").locator("[data-column='grid']")).to_have_text(
        "0 18 * * 5Europe/Berlin"
    )
    found = control(scheduled, "cron.show", name="added")["settings"]
    wanted = {"queue": "jobs", "cron": "0 18 * * 5", "zone": "Europe/Berlin"}
    assert {name: found[name] for name in wanted} == wanted
    assert (found["payload"], found["missed"]) == ('{"job": "close"}', "run_once")
    assert not is_wider_than_its_window(page)
    page.get_by_role("button", name="Delete added").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("added is deleted.")
    expect(row(page, "added")).to_have_count(0)
    with pytest.raises(Refused):
        control(scheduled, "cron.show", name="added")


def test_schedule_is_changed_by_keys_and_keeps_what_the_form_does_not_show(
    watched: Watch, scheduled: World
) -> None:
    watched.may_fail = True
    settings = {"queue": "jobs", "every": "300d", "payload": {"job": 1}, "headers": {"a": "b"}}
    control(scheduled, "cron.add", name="moving", settings=settings | {"priority": 7})
    page = watched.page()
    opened(page, scheduled, "moving")
    page.get_by_role("button", name="Change moving").focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#schedule-dialog")
    expect(dialog.get_by_role("heading", name="Change moving")).to_be_visible()
    expect(dialog.get_by_label("Name")).not_to_be_editable()
    expect(dialog.get_by_label("Queue")).to_be_focused()
    expect(dialog.get_by_label("Period")).to_have_value("300d")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Change moving")).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_label("each day").check()
    dialog.get_by_label("Time", exact=True).fill("06:15")
    dialog.get_by_label("Time zone").fill("Mars/Olympus")
    dialog.get_by_label("Payload").fill('{"job": ')
    page.keyboard.press("Tab")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator("#schedule-dialog-payload-problem")).to_contain_text("It was JSON")
    dialog.get_by_label("Payload").fill('{"job": 2}')
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator("#schedule-dialog-zone-problem")).to_contain_text("no time zone")
    dialog.get_by_label("Time zone").fill("Asia/Tokyo")
    dialog.get_by_label("Time zone").press("Enter")
    expect(page.locator("#said")).to_have_text("moving is changed.")
    expect(row(page, "moving").locator("[data-column='grid']")).to_have_text(
        "daily at 06:15Asia/Tokyo"
    )
    found = control(scheduled, "cron.show", name="moving")["settings"]
    assert (found["every"], found["daily"]) == (None, {"at": "06:15", "zone": "Asia/Tokyo"})
    assert (found["payload"], found["headers"], found["priority"]) == ({"job": 2}, {"a": "b"}, 7)
    # What was written there is not what a new one begins with.
    page.get_by_role("button", name="Add a schedule").click()
    expect(dialog.get_by_role("heading", name="A new schedule")).to_be_visible()
    expect(dialog.get_by_label("Name")).to_have_value("")
    expect(dialog.get_by_label("Name")).to_be_editable()
    dialog.get_by_label("Name").fill("moving")
    dialog.get_by_label("Queue").fill("jobs")
    dialog.get_by_label("Period").fill("1d")
    page.keyboard.press("Enter")
    expect(dialog.locator("#schedule-dialog-name-problem")).to_have_text(
        "there is a schedule moving already"
    )


def test_last_tick_and_what_was_missed_are_shown(page: Page, scheduled: World) -> None:
    control(scheduled, "cron.add", name="ticked", settings={"queue": "beats", "every": "1s"})
    opened(page, scheduled, "ticked")
    last = row(page, "ticked").locator("[data-column='last']")
    expect(last.locator(".chip")).to_have_text(re.compile("waits|started"))
    expect(last.locator("time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))

    def later(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        for one in found["schedules"]:
            one |= {"last_state": "missed", "missed_total": 1234, "missed_ms": 1_755_000_000_000}
        route.fulfill(response=answer, json=found)

    # What a night without a daemon leaves, as the daemon would tell it.
    page.route(f"**{SCHEDULES}", later)
    expect(last.locator(".chip")).to_have_text("missed")
    expect(last).to_contain_text("1,234 missed")
    control(scheduled, "cron.remove", name="ticked")


def test_ticks_are_asked_for_as_lines_come_into_sight(watched: Watch, scheduled: World) -> None:
    page = watched.page()
    opened(page, scheduled)
    expect(page.locator(ROWS)).to_have_count(DRAWN)
    assert ticks_asked_for(watched) == DRAWN
    page.locator("#schedules-more").click()
    expect(page.locator(ROWS)).to_have_count(3 * DRAWN)
    expect(page.locator(ROWS).last.locator(".later")).not_to_be_empty()
    at_rest(page)
    assert ticks_asked_for(watched) == 3 * DRAWN
    # What is known is not asked for again.
    page.get_by_role("button", name="Next ticks").click()
    page.get_by_label("Filter the schedules").fill("many-0 q3")
    expect(page.locator("#schedules-count")).to_have_text(re.compile("^14 of 2"))
    at_rest(page)
    assert ticks_asked_for(watched) == 3 * DRAWN
    firsts = page.locator(f"{ROWS} [data-column='grid'] code").all_inner_texts()
    assert firsts != sorted(firsts)


def test_list_that_is_slow_is_asked_for_less_often(watched: Watch, scheduled: World) -> None:
    page = watched.page()
    go_and_stop_the_clock(page, f"{scheduled.page}/schedules")

    def slowly(route: Route) -> None:
        page.clock.run_for(500)
        route.continue_()

    page.route(f"**{SCHEDULES}", slowly)
    # A page that is seen again asks at once, whatever it waits for.
    hide(page, True)
    with page.expect_response(lambda answer: answer.url.endswith(SCHEDULES)):
        hide(page, False)
    at_rest(page)
    page.unroute(f"**{SCHEDULES}")
    # It took half a second: now 20 times as long passes.
    before = watched.asked(SCHEDULES)
    page.clock.run_for(9_000)
    assert watched.asked(SCHEDULES) == before
    with page.expect_response(lambda answer: answer.url.endswith(SCHEDULES)):
        page.clock.run_for(1_500)


def test_moments(page: Page, scheduled: World) -> None:
    page.goto(f"{scheduled.page}/schedules")
    zone = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 10, 24, 12, tzinfo=zone)
    moments = [
        now.replace(hour=18, minute=30),
        # The night in which clocks go back.
        datetime(2026, 10, 25, 2, 30, tzinfo=zone),
        datetime(2026, 11, 1, 6, 0, tzinfo=zone),
        datetime(2027, 1, 1, 0, 0, tzinfo=zone),
        datetime(2026, 10, 23, 9, 0, tzinfo=zone),
    ]
    whole, exact = ([int(at.timestamp() * 1000) for at in moments], [0, 5000])
    now_ms = int(now.timestamp() * 1000)
    said = page.evaluate(MOMENTS, [[whole, [now_ms + ms for ms in exact]], str(zone), now_ms])
    assert said["moments"] == [
        ["18:30", "Sun 02:30", "1 Nov 06:00", "1 Jan 2027 00:00", "23 Oct 09:00"],
        ["12:00:00", "12:00:05"],
    ]
    assert said["untils"] == ["now", "now", "in 1 min"]
    assert said["zones"] == ["Europe/Berlin", "UTC"]
