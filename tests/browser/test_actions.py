"""What an operator does on the page, end to end with the daemon: pause, resume, retry, delete."""

from playwright.sync_api import Page, expect

from actors.dead_groups import shape_of
from tests.browser.seeing import Watch, go
from tests.browser.world import World

ERRORS = [
    '422 from https://crm.example/hook: {"error": "email is not valid"}',
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


def test_pause_and_resume(own_world: World, page: Page) -> None:
    go(page, own_world.page)
    page.get_by_role("button", name="Pause crm").click()
    expect(page.locator("#said")).to_contain_text("crm is paused")
    queue = page.locator("#queue-list li[data-queue='crm']")
    expect(queue.locator(".chip")).to_have_text("paused")
    expect(page.locator("#queue-table tbody .chip").first).to_have_text("paused")
    with own_world.client() as client:
        assert client.control("queue.show", queue="crm")["is_paused"]
    button = page.get_by_role("button", name="Resume crm")
    button.focus()
    page.keyboard.press("Enter")
    expect(queue.locator(".chip")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause crm")).to_be_focused()
    with own_world.client() as client:
        assert not client.control("queue.show", queue="crm")["is_paused"]


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
    assert own_world.host.books("mail") == {"accepted": 3, "dead": 3}
    own_world.mended.touch()
    group.get_by_role("button", name="Retry").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("3 of mail wait for delivery again.")
    expect(page.locator("#dead-empty")).to_be_visible()
    own_world.until_books("mail", {"accepted": 3, "delivered": 3})


def test_retry_that_fails_again_is_tried_once(own_world: World, page: Page) -> None:
    own_world.push("mail", 3)
    go(page, own_world.page)
    page.locator("#dead-list li").get_by_role("button", name="Retry").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("3 of mail wait for delivery again.")
    own_world.until_books("mail", {"accepted": 3, "dead": 3})


def test_delete_of_dead_letters(own_world: World, page: Page) -> None:
    own_world.push("mail", 2)
    go(page, own_world.page)
    page.locator("#dead-list li").get_by_role("button", name="Delete").click()
    expect(page.locator("#confirm-yes")).to_have_class("danger")
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("2 of mail deleted.")
    own_world.until_books("mail", {"accepted": 2, "deleted": 2})


def test_errors_have_the_shape_that_the_daemon_gives_them(page: Page, world: World) -> None:
    page.goto(world.page)
    assert page.evaluate(SHAPES, ERRORS) == [shape_of(text) for text in ERRORS]


def test_dead_letter_is_looked_at_and_retried(own_world: World, watched: Watch) -> None:
    page = watched.page()
    own_world.push("mail", 1, flow="signup", action="welcome", headers={"correlation_id": "c-17"})
    go(page, own_world.page)
    page.locator("#dead-list li a").click()
    expect(page.locator("#item-state")).to_have_text("FAILED")
    expect(page.locator("#timeline li").first).to_contain_text("accepted")
    expect(page.locator("#timeline li").last).to_contain_text("dead")
    expect(page.locator("#item-about")).to_contain_text("signup")
    expect(page.locator("#item-headers")).to_contain_text("c-17")
    expect(page.locator("#payload")).to_have_text('{\n  "n": 0\n}')
    expect(page.locator("#errors li")).to_have_count(1)
    own_world.mended.touch()
    page.get_by_role("button", name="Retry").click()
    page.locator("#confirm-yes").click()
    own_world.until_books("mail", {"accepted": 1, "delivered": 1})
    # The queue keeps what was delivered: the same address tells how it ended.
    expect(page.locator("#item-state")).to_have_text("DONE")
    expect(page.locator("#timeline li").last).to_contain_text("delivered")
    expect(page.get_by_role("button", name="Retry")).to_be_hidden()


def test_waiting_item_is_deleted(own_world: World, watched: Watch) -> None:
    with own_world.client() as client:
        client.push("lonely", ["one"])
        (letter,) = client.control("items.find", which={"queue": "lonely"})["items"]
    page = watched.page()
    go(page, f"{own_world.page}/items/{letter['id']}")
    expect(page.locator("#payload")).to_have_text("one")
    page.get_by_role("button", name="Delete").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#said")).to_have_text("Deleted.")
    own_world.until_books("lonely", {"accepted": 1, "deleted": 1})


def test_item_that_is_not_there(watched: Watch, world: World) -> None:
    watched.may_fail = True
    page = watched.page()
    page.goto(f"{world.page}/items/0198c0de-0a00-7000-8000-000000000001-17")
    expect(page.locator("#item-problem")).to_contain_text("0198c0de")
    expect(page.locator("#item-body")).to_be_hidden()
