"""The first view and the modules say the same figures."""

from playwright.sync_api import Page

from daemon.http.page import views
from tests.browser.world import World

AGES = [None, 0, 999, 1000, 59_999, 60_000, 12 * 60_000, 3_599_999, 3_600_000, 47 * 3_600_000]
COUNTS = [0, 7, 999, 1000, 1_234_567]

ASK = """async ([ages, counts]) => {
  const here = document.querySelector("script[type=module]").src;
  const words = await import(new URL("words.js", here));
  return { ages: ages.map(words.age), counts: counts.map(words.count) };
}"""
SHAPES = """async () => {
  const here = document.querySelector("script[type=module]").src;
  const words = await import(new URL("words.js", here));
  const charts = await import(new URL("charts.js", here));
  const states = await import(new URL("states.js", here));
  return {
    durations: [0, 61_000, 3_661_000].map(words.duration),
    rates: [0, 0.42, 12.6, 12_345].map(words.rate),
    bytes: [0, 1023, 1536, 412 * 2 ** 20].map(words.bytes),
    tops: [0, 3, 12, 501, 1000].map(charts.niceTop),
    line: charts.line([0, 5, 10, 60, 65], [0, 5, 10, 10, 0], 0, 100, 10, 20),
    area: charts.area("M0 38L10 2M50 2L60 38"),
    estimates: [
      { usedBytes: 9, estimate: { kind: "full", seconds: 2460 } },
      { usedBytes: 9, estimate: { kind: "empty", seconds: 30 } },
      { usedBytes: 9, estimate: { kind: "empty", seconds: 0.4 } },
      { usedBytes: 9, estimate: { kind: "steady", seconds: null } },
      { usedBytes: 0, estimate: { kind: "full", seconds: 1 } },
    ].map(states.estimateWords),
  };
}"""


def test_first_view_and_modules_say_the_same(page: Page, world: World) -> None:
    page.goto(world.page)
    ages = [*AGES, 2 * views.DAY_MS, 1200 * views.DAY_MS]
    said = page.evaluate(ASK, [ages, COUNTS])
    assert said["ages"] == [views.age(ms) for ms in ages]
    assert said["ages"][6] == "12 min"
    assert said["counts"] == [views.count(number) for number in COUNTS]


def test_figures_and_shapes(page: Page, world: World) -> None:
    page.goto(world.page)
    said = page.evaluate(SHAPES)
    assert said["durations"] == ["0:00", "1:01", "1:01:01"]
    assert said["rates"] == ["0/s", "0.4/s", "13/s", "12,345/s"]
    assert said["bytes"] == ["0 B", "1,023 B", "1.5 KiB", "412 MiB"]
    assert said["tops"] == [1, 5, 20, 1000, 1000]
    # Where nothing was sampled the line is broken.
    assert said["line"].count("M") == 2
    assert said["line"].startswith("M0.0 38.0L12.0 20.0L24.0 2.0M144.0 2.0")
    assert said["area"] == "M0 40L0 38L10 2L10 40ZM50 40L50 2L60 38L60 40Z"
    assert said["estimates"] == [
        "full in about 41 min",
        "empty in about 30 s",
        "empty in a moment",
        "neither filling nor draining",
        "empty",
    ]
