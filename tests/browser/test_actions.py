"""What an operator does on the page, end to end with the daemon: pause, resume, retry, delete,
breakers. One daemon; each test has a queue of its own, and leaves no dead letters."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from actors.control.dead_groups import shape_of
from forebay import encode_run
from forebay.stage_frames import WRITE_HEADER
from forebay.writes import new_write_id
from tests.browser.seeing import Watch, go
from tests.browser.world import World

ERRORS = [
    '422 from https://crm.example/hook: {"error": "email is not valid"}',
    "HTTP/1.1 503 for item 503, status: 404, exit code 65, 500.5 and code 4711",
    "٣ customers",
    "no customer 4711 in 0198c0de-0a00-7000-8000-000000000001-17",
    "it's 'quoted', at 0xdeadBEEF and 1.2.3.4",
    "two\n\n lines   and deadbeefdeadbeefdead",
    "ü" * 300,
    "",
]
SHAPES = """async (texts) => {
  const here = document.querySelector("script[type=module]").src;
  const { shapeOf } = await import(new URL("dead_jobs.js", here));
  return texts.map(shapeOf);
}"""


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = Path(os.path.realpath(tmp_path_factory.mktemp("acting")))
    with World(directory).running() as world:
        yield world


@pytest.fixture
def own_world(acting: World) -> Iterator[World]:
    yield acting
    acting.mended.unlink(missing_ok=True)
    with acting.client() as client:
        client.control("dead.remove", which={})


def test_pause_and_resume(own_world: World, page: Page) -> None:
    go(page, own_world.page)
    page.get_by_role("button", name="Pause crm").click()
    expect(page.locator("#said")).to_contain_text("crm is paused")
    queue = page.locator("#queue-list li[data-queue='crm']")
    expect(queue.locator(".chip")).to_have_text("paused")
    expect(page.locator("#queue-table tbody .chip").first).to_have_text("paused")
    with own_world.client() as client:
        assert client.control("queues.show", queue="crm")["is_paused"]
    button = page.get_by_role("button", name="Resume crm")
    button.focus()
    page.keyboard.press("Enter")
    expect(queue.locator(".chip")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause crm")).to_be_focused()
    with own_world.client() as client:
        assert not client.control("queues.show", queue="crm")["is_paused"]


def test_retry_of_dead_letters_end_to_end(own_world: World, page: Page) -> None:
    own_world.push("mail", 3, flow="signup", action="welcome")
    go(page, own_world.page)
    group = page.locator("#dead-list li")
    expect(group.locator(".number")).to_have_text("3")
    expect(group.locator(".error")).to_contain_text("no such mailbox")
    expect(page.locator("#figure-dead [data-value]")).to_have_text("3")
    # Nothing happens before the question is answered, and "Cancel" is where the focus is.
    group.get_by_role("button", name="Retry").click()
    expect(page.locator("#confirm-title")).to_have_text("Retry 3 dead letters?")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#confirm-dialog")).to_be_hidden()
    own_world.host.until_books({"accepted": 3, "dead": 3}, "mail")
    own_world.mended.touch()
    group.get_by_role("button", name="Retry").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("3 of mail wait for delivery again.")
    expect(page.locator("#dead-empty")).to_be_visible()
    own_world.host.until_books({"accepted": 3, "delivered": 3}, "mail")


def test_retry_that_fails_again_is_tried_once(own_world: World, page: Page) -> None:
    own_world.push("letters", 3)
    go(page, own_world.page)
    page.locator("#dead-list li").get_by_role("button", name="Retry").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("3 of letters wait for delivery again.")
    own_world.host.until_books({"accepted": 3, "dead": 3}, "letters")


def test_delete_of_dead_letters(own_world: World, page: Page) -> None:
    own_world.push("cards", 2)
    go(page, f"{own_world.page}?filter=letters")
    expect(page.locator("#dead-empty")).to_have_text("None has “letters”.")
    expect(page.locator("#dead-count")).to_have_text("0 of 2")
    page.get_by_label("Filter the queues").fill("cards")
    page.locator("#dead-list li").get_by_role("button", name="Delete").click()
    expect(page.locator("#confirm-yes")).to_have_class("danger")
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("2 of cards deleted.")
    own_world.host.until_books({"accepted": 2, "deleted": 2}, "cards")


def test_errors_have_the_shape_that_the_daemon_gives_them(page: Page, world: World) -> None:
    page.goto(world.page)
    assert page.evaluate(SHAPES, ERRORS) == [shape_of(text) for text in ERRORS]


def test_dead_letter_is_looked_at_and_retried(own_world: World, watched: Watch) -> None:
    page = watched.page()
    own_world.push("notes", 1, flow="signup", action="welcome", headers={"correlation_id": "c-17"})
    go(page, own_world.page)
    page.locator("#dead-list li a").click()
    expect(page.locator("#item-state")).to_have_text("FAILED")
    expect(page.locator("#timeline li").first).to_contain_text("accepted")
    expect(page.locator("#timeline li").last).to_contain_text("dead")
    expect(page.locator("#item-about")).to_contain_text("signup")
    expect(page.locator("#item-headers")).to_contain_text("c-17")
    expect(page.locator("#payload")).to_have_text('{\n  "n": 0\n}')
    expect(page.locator("#last-error")).to_contain_text("no such mailbox")
    expect(page.locator("#timeline")).to_be_hidden()
    # The tab stands in the address, and goes by keys.
    page.get_by_role("tab", name="Overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#timeline")).to_be_visible()
    assert page.url.endswith("#history")
    expect(page.locator("#errors li")).to_have_count(1)
    expect(page.locator("#errors li")).to_contain_text("attempt 1")
    expect(page.locator("#item-hands")).to_contain_text("Attempts1")
    own_world.push("kin", 1, headers={"correlation_id": "c-17"})
    page.get_by_role("button", name="Find what has its correlation id").click()
    expect(page.locator("#related li")).to_contain_text("same correlation id · kin")
    own_world.mended.touch()
    page.get_by_role("button", name="Retry").click()
    page.locator("#confirm-yes").click()
    own_world.host.until_counts("notes", delivered=1)
    # The queue keeps what was delivered: the same address tells how it ended.
    expect(page.locator("#item-state")).to_have_text("DONE")
    expect(page.locator("#timeline li").last).to_contain_text("delivered")
    expect(page.get_by_role("button", name="Retry")).to_be_hidden()


def test_breaker_is_opened_and_closed(own_world: World, page: Page) -> None:
    own_world.push("notes", 1)
    go(page, own_world.page)
    breaker = page.locator("#breakers li").first
    expect(breaker.locator(".chip")).to_have_text("closed")
    breaker.get_by_role("button", name="Open the breaker of command:").click()
    expect(page.locator("#confirm-text")).to_contain_text("Nothing is sent to command:")
    page.locator("#confirm-yes").click()
    expect(breaker.locator(".chip")).to_have_text("open")
    expect(breaker.locator(".note")).to_have_text("opened by an operator")
    with own_world.client() as client:
        (found,) = client.control("breakers.ls")["breakers"]
        assert found["forced"]
    button = breaker.get_by_role("button", name="Close the breaker of command:")
    expect(button).to_be_focused()
    button.click()
    page.locator("#confirm-yes").click()
    expect(breaker.locator(".chip")).to_have_text("closed")
    with own_world.client() as client:
        (found,) = client.control("breakers.ls")["breakers"]
        assert (found["state"], found["forced"]) == ("closed", False)


def test_item_shows_its_receipt_and_leads_to_its_job(own_world: World, page: Page) -> None:
    job = "0198c0de-0a00-7000-8000-000000000001-17"
    write = new_write_id()
    headers = {WRITE_HEADER: write.hex(), "job_id": job}
    with own_world.client() as client:
        staged = client.stage(write)
        staged.submit(encode_run([b"one", b"two"], queue="written", headers=headers))
        client.publish(write, [staged.seal().stage])
        (item, *_) = client.control("items.find", which={"queue": "written"})["items"]
    go(page, f"{own_world.page}/items/{item['id']}")
    about = page.locator("#item-about")
    expect(about).to_contain_text("2 accepted · 2 pending")
    expect(about.get_by_role("link", name=job)).to_have_attribute(
        "href", f"/queue-metrics/items/{job}"
    )


def test_history_tells_who_had_an_item_and_what_they_said(own_world: World, page: Page) -> None:
    own_world.push("kept", 1)
    items = f"{own_world.address}/api/queue-items"

    def lease(consumer: str) -> dict[str, Any]:
        params: dict[str, str | float | bool] = {
            "queue": "kept",
            "consumer": consumer,
            "wait_s": 30,
            "lease_s": 3600,
        }
        return dict(page.request.get(f"{items}/next", params=params).json())

    first = lease("pod-1")
    refusal = {"token": first["token"], "error": "no such account", "failure_reason": "business"}
    again = {"permanent": False, "delay_s": 0}
    assert page.request.post(f"{items}/{first['id']}/nack", data=refusal | again).ok
    second = lease("pod-2")
    go(page, f"{own_world.page}/items/{first['id']}#history")
    hands = page.locator("#item-hands")
    expect(hands).to_contain_text(re.compile(r"Locked by\S*/kept/pod-2"))
    expect(page.locator("#errors li .chip")).to_have_text("business")
    expect(page.locator("#errors li")).to_contain_text(re.compile(r"by \S*/kept/pod-1"))
    expect(page.locator("#result-panel")).to_be_hidden()
    done = {"token": second["token"], "result": "invoice 4711"}
    assert page.request.post(f"{items}/{second['id']}/ack", data=done).ok
    expect(page.locator("#result")).to_have_text("invoice 4711")
    expect(hands).to_contain_text(re.compile(r"Last locked by\S*/kept/pod-2"))
    expect(page.locator("#item-state")).to_have_text("DONE")


def test_waiting_item_is_deleted(own_world: World, watched: Watch) -> None:
    with own_world.client() as client:
        client.push("lonely", ["one"])
        own_world.host.until_counts("lonely", warm=1)
        (letter,) = client.control("items.find", which={"queue": "lonely"})["items"]
    page = watched.page()
    go(page, f"{own_world.page}/items/{letter['id']}")
    expect(page.locator("#payload")).to_have_text("one")
    page.get_by_role("button", name="Delete").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("Deleted.")
    own_world.host.until_books({"accepted": 1, "deleted": 1}, "lonely")


def test_item_that_is_not_there(watched: Watch, world: World) -> None:
    watched.may_fail = True
    page = watched.page()
    page.goto(f"{world.page}/items/0198c0de-0a00-7000-8000-000000000001-17")
    expect(page.locator("#item-problem")).to_contain_text("0198c0de")
    expect(page.locator("#item-body")).to_be_hidden()
