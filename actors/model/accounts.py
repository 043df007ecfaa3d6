"""Accounts: the names under which the journal keeps its books.

Most runs are in the account of their queue, which has the queue's name. A staged run is in the
account of its stage, so that a stage can become visible or be dropped as a whole. When its chunk is
freed, published totals move to the account of their write, for the receipt; when the receipt is
forgotten, to the queue's.

    queue
    NUL write stage queue      write and stage in hexadecimal, the stage zeros for a whole write,
                               and all ones for what was published elsewhere and moved here
"""

from typing import Final, NamedTuple

from forebay.limits import WRITE_ID_BYTES
from forebay.run import RunHead
from forebay.stage_frames import MOVED, write_of

NO_STAGE: Final = bytes(WRITE_ID_BYTES)
_MARK: Final = "\0"
_DIGITS: Final = 2 * WRITE_ID_BYTES


class Account(NamedTuple):
    queue: str
    write: bytes = b""
    """Empty: the queue's own account."""
    stage: bytes = b""

    @property
    def name(self) -> str:
        if not self.write:
            return self.queue
        return f"{_MARK}{self.write.hex()}{self.stage.hex()}{self.queue}"

    @property
    def is_moved(self) -> bool:
        """Whether its items were accepted by another daemon and came here later."""
        return self.stage == MOVED

    @property
    def of_write(self) -> "Account":
        """Moved items stay separate: they are not part of what was published here."""
        return self if self.is_moved else Account(self.queue, self.write, NO_STAGE)


def account_of(head: RunHead, stage: bytes) -> Account:
    """The account of a run that was staged under `stage`, or pushed (empty)."""
    if not stage:
        return Account(head.queue)
    return Account(head.queue, write_of(head) or NO_STAGE, stage)


def written_by(name: str) -> str:
    """The write of an account, in hexadecimal; empty for a queue's own account."""
    return name[1 : 1 + _DIGITS] if name.startswith(_MARK) else ""


def parse_account(name: str) -> Account:
    if not name.startswith(_MARK):
        return Account(name)
    middle = 1 + _DIGITS
    end = middle + _DIGITS
    return Account(name[end:], bytes.fromhex(name[1:middle]), bytes.fromhex(name[middle:end]))
