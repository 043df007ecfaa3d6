"""Text for PostgreSQL, which has all of Unicode in its strings but the character 0.

Names of flows and actions are the users', and come back as they were. The two characters that
are changed on the way are hardly ever in one.
"""

from typing import Final

ESCAPE: Final = "\x1a"


def to_text(text: str) -> str:
    if "\0" in text or ESCAPE in text:
        return text.replace(ESCAPE, ESCAPE + "S").replace("\0", ESCAPE + "0")
    return text


def from_text(text: str) -> str:
    if ESCAPE in text:
        return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "S", ESCAPE)
    return text
