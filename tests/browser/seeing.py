"""Pages that are watched while a test uses them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  Object.defineProperty(document, "visibilityState",
    { value: hidden ? "hidden" : "visible", configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A headless browser has no tabs in the background: the page is told what it would be told."""
POLICY = """() => {
  document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`the policy forbids ${event.violatedDirective}: ${event.blockedURI}`));
}"""


class Watch:
    """Opens pages and notes what no page may do."""

    def __init__(self, browser: Browser, hang_ms: int) -> None:
        self._browser = browser
        self._hang_ms = hang_ms
        self._contexts: list[BrowserContext] = []
        self.wrongs: list[str] = []
        self.requests: list[str] = []
        self.may_fail = False
        """The daemon will be away, or refuse: the browser logs each answer of that kind."""
        expect.set_options(timeout=hang_ms)

    def page(self, width: int = 1280, **options: Any) -> Page:
        viewport = {"width": width, "height": 900}
        context = self._browser.new_context(viewport=viewport, **options)  # type: ignore[arg-type]
        context.set_default_timeout(self._hang_ms)
        context.add_init_script(f"({POLICY})()")
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self._logged(message.type, message.text))
        page.on("pageerror", lambda error: self.wrongs.append(f"error: {error}"))
        page.on("request", lambda request: self._asked(page, request.url))
        return page

    def _logged(self, kind: str, text: str) -> None:
        is_answer = "Failed to load resource" in text
        if kind in ("error", "warning") and not (self.may_fail and is_answer):
            self.wrongs.append(f"{kind}: {text}")

    def _asked(self, page: Page, url: str) -> None:
        self.requests.append(url)
        own = urlsplit(page.url).netloc
        if own and urlsplit(url).netloc != own:
            self.wrongs.append(f"asked somebody else: {url}")

    def asked(self, path: str) -> int:
        """How often the API was asked for this."""
        return sum(1 for url in self.requests if urlsplit(url).path == path)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def go(page: Page, address: str) -> None:
    """Opens it, and returns when it shows what the daemon says."""
    page.goto(address)
    expect(page.locator("#freshness")).to_have_text("live")


def go_and_stop_the_clock(page: Page, address: str) -> None:
    """Opens it with a clock that moves when it is told to, and returns between two beats."""
    begin = datetime(2026, 1, 1, 12, tzinfo=UTC)
    page.clock.install(time=begin)
    go(page, address)
    page.clock.pause_at(begin + timedelta(hours=1))
    at_rest(page)
    # One more beat, so that what is shown is of the time at which the clock stands.
    page.clock.run_for(5_100)
    at_rest(page)


def at_rest(page: Page) -> None:
    """Returns when the page has shown what it has asked for."""
    expect(page.locator("body[data-asking]")).to_have_count(0)


def hide(page: Page, hidden: bool) -> None:
    page.evaluate(HIDE, hidden)


def column(page: Page, name: str) -> Locator:
    """The cells of a column of the Action Queues table, as they are drawn."""
    return page.locator(f"#queue-table tbody td[data-column='{name}']")


def is_wider_than_its_window(page: Page) -> bool:
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    return bool(page.evaluate(wide))
