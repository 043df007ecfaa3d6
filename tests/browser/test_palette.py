"""WCAG AA: every pair of colours that the page puts together, light and dark."""

import re
from pathlib import Path

import pytest

import daemon.http.page

PALETTE = Path(daemon.http.page.__file__).parent / "static" / "palette.css"
TEXT, LARGE_OR_SHAPE = 4.5, 3.0

PAIRS = [
    *((text, "surface", TEXT) for text in ("ink", "muted", "accent")),
    *((text, "ground", TEXT) for text in ("ink", "muted", "accent")),
    *((text, "raised", TEXT) for text in ("ink", "muted", "accent")),
    *((tone, f"{tone}-soft", TEXT) for tone in ("good", "warn", "bad", "accent")),
    *((tone, "surface", TEXT) for tone in ("good", "warn", "bad")),
    ("bad", "raised", TEXT),
    ("on-accent", "accent", TEXT),
    ("surface", "ink", TEXT),
    *((shape, "surface", LARGE_OR_SHAPE) for shape in ("edge", "focus", "accent", "warn")),
    ("focus", "raised", LARGE_OR_SHAPE),
    ("focus", "ground", LARGE_OR_SHAPE),
]  # fmt: skip


def palette() -> dict[str, tuple[str, str]]:
    """Each name's colours: light, dark."""
    found = re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\)", PALETTE.read_text())
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_computed_as_the_standard_has_it() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("front,back,least", PAIRS)
def test_pair_has_the_contrast_of_aa(front: str, back: str, least: float, theme: str) -> None:
    colours = palette()
    which = ("light", "dark").index(theme)
    found = contrast(colours[front][which], colours[back][which])
    assert found >= least, f"{front} on {back}: {found:.2f}"


def test_colours_stand_in_the_palette_alone() -> None:
    for sheet in PALETTE.parent.glob("*.css"):
        if sheet != PALETTE:
            assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;, ])", sheet.read_text()), sheet.name
