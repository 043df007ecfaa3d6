"""Text for PostgreSQL, which has all of Unicode in its strings but the character 0.

Names of flows and actions are the users', and come back as they were. The two characters that
are changed on the way are hardly ever in one.
"""

from typing import Final

_ESCAPE: Final = "\x1a"


def to_text(text: str) -> str:
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "S").replace("\0", _ESCAPE + "0")
    return text


def from_text(text: str) -> str:
    if _ESCAPE in text:
        return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "S", _ESCAPE)
    return text
