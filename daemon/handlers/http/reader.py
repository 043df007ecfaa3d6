"""Reads the answers of one HTTP/1.1 connection, one after the other. No I/O.

All that comes from a destination is read by h11, which is told of a request when the first bytes of
its answer come. A destination that takes what it is sent mostly says the same each time, or the
same within a second. Bytes that h11 has read as a whole answer on this connection mean what they
meant then, and it is not asked again: with one item a request and 16 workers the daemon's
processor time for a request is 156 µs then, and 229 where each answer has a number or a time of its
own and is read anew.
"""

from typing import Final

import h11

from daemon.handlers.http.answer import Answer
from daemon.handlers.http.head import RequestHead

HEAD_BYTES_MAX: Final = 64 * 1024
KNOWN_BYTES_MAX: Final = 4 * 1024
"""A longer answer is read each time."""

_END: Final = h11.EndOfMessage()


class AnswerReader:
    """For each request: `expect`, then `take` what comes until there is an answer, then `end`."""

    __slots__ = (
        "_asked",
        "_bytes_max",
        "_first",
        "_h11",
        "_head",
        "_known",
        "_meaning",
        "_parts",
        "_pieces",
        "_size",
    )

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._asked: h11.Request | None = None
        """What h11 is to be told before it reads; None: it was told."""
        self._bytes_max = 0
        self._head: h11.Response | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._first = b""
        """What came first of this answer."""
        self._pieces = 0
        self._known = b""
        """All that came of an earlier one, in one piece; empty: there is none."""
        self._meaning: Answer | None = None
        """What h11 made of it."""

    @property
    def has_begun(self) -> bool:
        """A byte of the answer is there."""
        return bool(self._first)

    @property
    def has_head(self) -> bool:
        return self._head is not None

    def expect(self, head: RequestHead, bytes_max: int) -> None:
        """A request is sent that begins with `head`; so much of its answer's body may be read."""
        self._asked = head.shared
        self._bytes_max = bytes_max
        self._first = b""

    def take(self, data: bytes) -> Answer | None:
        """More of the answer; empty: the other side has ended. The answer, if that was the last of
        it or as much as may be read. h11.RemoteProtocolError if it is no HTTP."""
        if self._asked is not None:
            self._first = data
            if data == self._known:
                return self._meaning
            self._begin(self._asked)
        self._pieces += 1
        self._h11.receive_data(data)
        return self._read()

    def end(self, answer: Answer) -> bool:
        """Makes ready for the next request, if both sides keep the connection."""
        if answer is self._meaning:
            return True
        connection = self._h11
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return False
        if any(connection.trailing_data):
            return False
        connection.start_next_cycle()
        if self._pieces == 1 and len(self._first) <= KNOWN_BYTES_MAX:
            self._known, self._meaning = self._first, answer
        return True

    def _begin(self, asked: h11.Request) -> None:
        self._h11.send(asked)
        self._h11.send(_END)
        self._asked = self._head = None
        self._parts = []
        self._size = self._pieces = 0

    def _read(self) -> Answer | None:
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                return None
            if type(event) is h11.Response:
                self._head = event
            elif type(event) is h11.Data:
                self._parts.append(bytes(event.data))
                self._size += len(event.data)
                if self._size > self._bytes_max:
                    return self._answer(is_cut=True)
            elif type(event) is h11.EndOfMessage:
                return self._answer()
            elif type(event) is not h11.InformationalResponse:
                raise h11.RemoteProtocolError("it changed the protocol")

    def _answer(self, *, is_cut: bool = False) -> Answer:
        head = self._head
        assert head is not None, "h11 gives the head before the body"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        body = b"".join(self._parts)[: self._bytes_max]
        return Answer(head.status_code, headers, body, is_cut)
