"""What is wrong with a view for those who do not see it, see it badly, or have no mouse.

Own checks, in the page and in Chromium's accessibility tree: nothing is fetched for them. They are
rules that a machine can tell; whether the words make sense is for people.
"""

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Page

CONTROLS = frozenset(
    {
        *("button", "checkbox", "combobox", "dialog", "DisclosureTriangle", "link", "menuitem"),
        *("option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "table"),
        "textbox",
    }
)

"""Roles of which each must have a name."""
TABS_MAX = 150

LOOKING = Path(__file__).with_name("accessibility.js").read_text().partition("\n\n")[2]


def wrongs_of(page: Page) -> list[str]:
    """What is wrong with the page as it stands, in the light and in the dark."""
    found: list[str] = look(page, "structure") + unnamed(page)
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        # Colours that move from one to the other have none of them.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found += [f"{scheme}: {wrong}" for wrong in look(page, "styles")]
    return found


def look(page: Page, what: str) -> Any:
    return page.evaluate(f"({LOOKING.strip()}).{what}()")


def unnamed(page: Page) -> list[str]:
    """Controls without a name, and which are the same in name and place, as a screen reader has
    them."""
    session = page.context.new_cdp_session(page)
    nodes: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    controls = [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip())
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in CONTROLS
    ]
    assert controls, "there is no accessibility tree"
    found = [f"a {role} has no name" for role, name in controls if not name]
    buttons = Counter(name for role, name in controls if role == "button" and name)
    return found + [
        f"{count} buttons are named {name}" for name, count in buttons.items() if count > 1
    ]


def wrongs_of_keys(page: Page) -> list[str]:
    """Walks through the page, or its open dialog, with Tab: whether the focus is seen, comes to
    everything, and never stays anywhere."""
    look(page, "follow")
    wanted = look(page, "went")["wanted"]
    assert 0 < wanted < TABS_MAX
    for _ in range(wanted + 2):
        page.keyboard.press("Tab")
    went: list[str] = look(page, "went")["wrongs"]
    return went
