"""The pictures of the page in docs/images, of a real daemon at work.

python -m bench.screenshots [--seconds 150]
"""

import argparse
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import Browser, Page, expect, sync_playwright

from bench.chromium import FLAGS, find
from bench.screenshot_scene import scene
from bench.screenshot_top import draw_top

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDE, NARROW = 1280, 400
SCALE: Final = 1.5
PATIENCE_MS: Final = 30_000
LINE: Final = re.compile("L")
"""A path with more than one point."""


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
            keep_drawing(browser, drawn, asked.to / "top.png")
            browser.close()


def take(browser: Browser, address: str, directory: Path, width: int, theme: str) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        device_scale_factor=SCALE,
        color_scheme="dark" if theme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(address)
    expect(page.locator("#freshness")).to_have_text("live")
    expect(page.locator("#queue-list path.out").first).to_have_attribute("d", LINE)
    page.locator("#running summary").click()
    keep(page, directory / f"queue-metrics-{width}-{theme}.png")
    if width == WIDE:
        page.locator("#dead-list a").first.click()
        expect(page.locator("#item-body")).to_be_visible()
        page.set_viewport_size({"width": WIDE, "height": 640})
        keep(page, directory / f"item-{theme}.png")
    context.close()


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
