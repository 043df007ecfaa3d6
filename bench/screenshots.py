"""The pictures of the page in docs/images, of a real daemon at work.

python -m bench.screenshots [--seconds 150]
"""

import argparse
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from bench.chromium import FLAGS, find
from bench.screenshot_scene import scene
from bench.screenshot_top import draw_top

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDE, NARROW = 1280, 400
LOW: Final = 480
SCALE: Final = 1.5
PATIENCE_MS: Final = 30_000
LINE: Final = re.compile("L")
"""A path with more than one point."""
SCHEDULES: Final[dict[str, dict[str, Any]]] = {
    "close-of-day": {
        "description": "the day's figures to the partners",
        "queue": "partner-eu",
        "daily": {"at": "18:00", "zone": "America/New_York"},
        "missed": "skip",
    },
    "heartbeat": {"queue": "webhooks", "every": "30s", "missed": "skip"},
    "month-end": {"queue": "landing", "cron": "0 6 1 * *", "missed": "run_all"},
    "reindex": {
        "description": "the whole catalogue, on working days",
        "queue": "search",
        "cron": "30 2 * * 1-5",
        "zone": "Europe/Berlin",
    },
    "rescore": {"queue": "scoring", "every": "6h", "enabled": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150, help="of work before the pictures")
    parser.add_argument("--to", type=Path, default=IMAGES, help="where the pictures go")
    asked = parser.parse_args()
    path = find()
    if path is None:
        sys.exit("there is no Chromium: python -m bench.chromium --install")
    asked.to.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE_MS)
    print(f"a daemon works for {asked.seconds:.0f} s …", flush=True)
    with scene(asked.seconds) as daemon, TemporaryDirectory() as scratch:
        # Before Playwright: its loop and Textual's cannot both be this thread's.
        drawn = Path(scratch) / "top.svg"
        draw_top(Path(daemon.socket), drawn)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
            for width in (WIDE, NARROW):
                for theme in ("light", "dark"):
                    take(browser, f"{daemon.address}/queue-metrics", asked.to, width, theme)
            # Now: the items of their ticks wait, and the pictures before are about work.
            with daemon.connect() as client:
                for name, settings in SCHEDULES.items():
                    client.control("cron.add", name=name, settings=settings)
            for theme in ("light", "dark"):
                take_schedules(browser, f"{daemon.address}/queue-metrics", asked.to, theme)
            keep_drawing(browser, drawn, asked.to / "top.png")
            browser.close()


def look(browser: Browser, width: int, height: int, theme: str) -> Page:
    """A page of its own; its browser context goes with it."""
    return browser.new_page(
        viewport={"width": width, "height": height},
        device_scale_factor=SCALE,
        color_scheme="dark" if theme == "dark" else "light",
    )


def take(browser: Browser, address: str, directory: Path, width: int, theme: str) -> None:
    page = look(browser, width, 900, theme)
    page.goto(address)
    expect(page.locator("#freshness")).to_have_text("live")
    expect(page.locator("#queue-list path.out").first).to_have_attribute("d", LINE)
    page.locator("#running summary").click()
    keep(page, directory / f"queue-metrics-{width}-{theme}.png")
    if width == WIDE:
        page.set_viewport_size({"width": WIDE, "height": LOW})
        take_item(page, directory, theme)
    page.close()


def take_item(page: Page, directory: Path, theme: str) -> None:
    """Light: what it is. Dark: what happened to it."""
    page.locator("#dead-list a").first.click()
    expect(page.locator("#item-body")).to_be_visible()
    if theme == "dark":
        page.get_by_role("tab", name="History").click()
        expect(page.locator("#timeline")).to_be_visible()
    keep(page, directory / f"item-{theme}.png")


def take_schedules(browser: Browser, address: str, directory: Path, theme: str) -> None:
    page = look(browser, WIDE, LOW, theme)
    page.goto(f"{address}/schedules")
    expect(page.locator("#schedules-table .later").first).not_to_be_empty()
    keep(page, directory / f"schedules-{theme}.png")
    page.close()


def keep_drawing(browser: Browser, drawing: Path, file: Path) -> None:
    page = browser.new_page(device_scale_factor=SCALE)
    page.goto(drawing.as_uri())
    box = page.evaluate(
        "(({width, height}) => [width, height])(document.rootElement.viewBox.baseVal)"
    )
    page.set_viewport_size({"width": WIDE, "height": round(WIDE * box[1] / box[0])})
    page.screenshot(path=file)
    print(file, flush=True)
    page.close()


def keep(page: Page, file: Path) -> None:
    page.mouse.move(0, 0)
    page.screenshot(path=file, full_page=True)
    print(file, flush=True)


if __name__ == "__main__":
    main()
