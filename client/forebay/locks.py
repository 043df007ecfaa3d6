"""The lock of polled items, by which any process can acknowledge them.

A lock names the queue and its leases, so that its text is enough to acknowledge: `17.crm`, or
`17+18.crm` if items of several runs were polled together. REST calls a text with one lease a token.
A lock is valid until the daemon that gave it ends or the lease runs out.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from forebay.errors import BadRun, LeaseLost, Refused
from forebay.head import check_queue_name
from forebay.lease_frames import TOKEN_MAX

_TEXT: Final = re.compile(r"([0-9]{1,20}(?:\+[0-9]{1,20})*)\.(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lock:
    queue: str
    tokens: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'+'.join(map(str, self.tokens))}.{self.queue}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError if the text is not a valid lock."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a valid lock")
        tokens, queue = tuple(map(int, match[1].split("+"))), match[2]
        try:
            check_queue_name(queue)
        except BadRun as problem:
            raise ValueError(f"{text!r} is not a valid lock: {problem}") from None
        if max(tokens) > TOKEN_MAX or len(set(tokens)) != len(tokens):
            raise ValueError(f"{text!r} is not a valid lock")
        return cls(queue, tokens)


class LockLost(LeaseLost):
    """The lock was used before, or its time ran out: the items may be with others by now. Nothing
    was changed under the leases that are lost."""

    def __init__(self, lock: Lock, lost: int) -> None:
        text = f"lock {lock} is lost: it has run out, was used before, or never was"
        if lost < len(lock.tokens):
            text = f"{lost} of the {len(lock.tokens)} leases of lock {lock} are lost"
        Refused.__init__(self, "LEASE_LOST", text)
        self.items = []
        self.lock = lock
