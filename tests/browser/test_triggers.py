"""The triggers view, end to end with the daemon: add, run now, its job and what that has claimed,
pause, resume, delete."""

from playwright.sync_api import Locator, Page, expect

from tests.browser.seeing import Watch, go, is_wider_than_its_window
from tests.browser.world import World


def row(page: Page, name: str) -> Locator:
    return page.locator(f"#triggers-table tbody tr[data-key='{name}']")


def added(page: Page, world: World, name: str, queue: str) -> None:
    """A trigger made in the form, which polls when it is told to."""
    go(page, f"{world.page}/triggers")
    page.get_by_role("button", name="Add a trigger").click()
    dialog = page.locator("#trigger-dialog")
    fields = {
        "Name": name,
        "Queue that it polls": queue,
        "Queue that its jobs go to": "crm",
        "Polls each": "1d",
        "Items a job": "3",
    }
    for label, text in fields.items():
        dialog.get_by_label(label).fill(text)
    page.keyboard.press("Enter")


def test_trigger_is_added_and_run_and_its_job_leads_to_what_it_claimed(
    page: Page, scheduled: World
) -> None:
    added(page, scheduled, "embed", "search")
    found = row(page, "embed")
    expect(found.locator(".chip")).to_have_text("runs here")
    expect(found.locator("[data-column='jobs']")).to_contain_text("none")
    expect(page.locator("#triggers-timed")).to_contain_text("of type TIME, which are schedules.")
    scheduled.push("search", 5)
    scheduled.host.until_counts("search", cold=5)
    page.get_by_role("button", name="Run embed now").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("embed has made a job of 3 items.")
    found.locator("summary").click()
    job = found.locator("[data-column='jobs'] a")
    expect(found.locator("[data-column='jobs'] li")).to_contain_text("3 items")
    job.click()
    page.get_by_role("tab", name="History").click()
    related = page.locator("#related li")
    expect(related).to_have_count(3)
    expect(related.first).to_contain_text("in this job · search")
    expect(related.first.locator(".chip")).to_have_text("RUNNING")
    # And back: what is claimed names its job.
    job_id = page.locator("#item-id").inner_text()
    related.first.get_by_role("link").click()
    expect(page.locator("#item-about").get_by_role("link", name=job_id)).to_be_visible()
    page.get_by_role("tab", name="History").click()
    expect(related).to_contain_text(f"{job_id}its job · crm")


def test_trigger_is_paused_and_resumed_and_deleted(watched: Watch, scheduled: World) -> None:
    page = watched.page(width=400)
    added(page, scheduled, "invoice", "notes-in")
    expect(row(page, "invoice").locator(".chip")).to_have_text("runs here")
    assert not is_wider_than_its_window(page)
    page.get_by_role("button", name="Pause invoice").click()
    expect(row(page, "invoice").locator(".chip")).to_have_text("paused")
    with scheduled.client() as client:
        assert client.control("trigger.show", name="invoice")["paused"]
    page.get_by_role("button", name="Resume invoice").click()
    expect(row(page, "invoice").locator(".chip")).to_have_text("runs here")
    page.get_by_role("button", name="Delete invoice").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("invoice is deleted.")
    expect(row(page, "invoice")).to_have_count(0)


def test_trigger_is_changed(watched: Watch, scheduled: World) -> None:
    watched.may_fail = True
    page = watched.page()
    added(page, scheduled, "moved", "papers")
    page.get_by_role("button", name="Change moved").click()
    dialog = page.locator("#trigger-dialog")
    expect(dialog.get_by_label("Name")).not_to_be_editable()
    expect(dialog.get_by_label("Queue that it polls")).to_have_value("papers")
    dialog.get_by_label("Items a job").fill("5")
    dialog.get_by_label("Polls each").fill("9d")
    page.keyboard.press("Enter")
    problem = dialog.locator("#trigger-dialog-polling_interval-problem")
    expect(problem).to_have_text("9d is outside 100ms..1d")
    dialog.get_by_label("Polls each").fill("2h")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("moved is changed.")
    expect(row(page, "moved").locator("[data-column='batch']")).to_have_text("up to 5 items a job")
    with scheduled.client() as client:
        found = client.control("trigger.show", name="moved")["settings"]
        assert (found["polling_interval"], found["batch_size"]) == ("2h", 5)
        client.control("trigger.remove", name="moved")


def test_what_the_daemon_says_against_a_trigger_is_shown(watched: Watch, scheduled: World) -> None:
    watched.may_fail = True
    page = watched.page()
    added(page, scheduled, "circle", "crm")
    expect(page.locator("#trigger-dialog")).to_contain_text("the same")
    page.get_by_role("button", name="Cancel").click()
    expect(row(page, "circle")).to_have_count(0)
