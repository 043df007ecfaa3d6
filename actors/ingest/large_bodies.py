"""Requests with large bodies: how many values they may hold, and when they are parsed.

Parsing a body blocks the event loop, and a thread does not help: `json` holds the GIL from the
first byte to the last. The cost depends on the number of values far more than on the number of
bytes: 8 MiB of `[],` take 0.6 to 2.5 s and 200 MB; 8 MiB of text take 25 to 70 ms. So values are
counted first: 8 ms for 8 MiB, and up to 60 if its texts are full of commas. A body with too many is
refused.

Large bodies are also parsed one by one, with a pause before each (`LargeBodies`). So other tasks
get a turn between any two, however many connections send one.
"""

from typing import Final

import trio

VALUES_MAX: Final = 100_000
"""Values of one JSON document: parsing them takes 10 to 40 ms."""
SMALL_BYTES: Final = 64 * 1024
"""Up to this size a body is parsed at once: it cannot hold more than 33,000 values."""
LARGE_BYTES_S: Final = 32 * 1024 * 1024
"""All larger bodies together are parsed at most at this pace."""
PAUSE_S_MAX: Final = 1.0

_NOT_MARKS: Final = bytes(set(range(256)) - set(b'",[{'))


def has_too_many_values(body: bytes) -> bool:
    """Whether a JSON document has more than VALUES_MAX values."""
    return len(body) > SMALL_BYTES and count_values(body) > VALUES_MAX


def count_values(body: bytes) -> int:
    """How many values a JSON document has, by its commas and opening brackets outside of texts: the
    outermost value is not counted, and a list or an object within another may count twice. Keys do
    not count. In a small document, marks within texts count too."""
    marks = body.translate(None, _NOT_MARKS)
    quotes = marks.count(b'"')
    if len(marks) - quotes <= VALUES_MAX:
        # Few enough, even if all of them are outside of texts.
        return len(marks) - quotes
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
        marks = body.translate(None, _NOT_MARKS)
    texts = marks.count(b'"') // 2
    if texts > 2 * VALUES_MAX:
        # A value has at most a key and a text. Looking between so many takes too long.
        return texts // 2
    return sum(map(len, marks.split(b'"')[::2]))


class LargeBodies:
    """The order in which large bodies are parsed."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._passed_at = 0.0

    async def wait(self, size: int) -> None:
        """Returns when a body of that size may be parsed, which the caller must do at once.

        The pause is as long as parsing the previous body took, so others get half of the time.
        """
        if size <= SMALL_BYTES:
            return
        is_next = self._lock.locked()
        async with self._lock:
            took_s = trio.current_time() - self._passed_at if is_next else 0.0
            await trio.sleep(max(size / LARGE_BYTES_S, min(took_s, PAUSE_S_MAX)))
            self._passed_at = trio.current_time()
