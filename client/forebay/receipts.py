"""Receipts: how many items of a published write are delivered, dead or pending.

    receipt = client.receipt(write).wait(timeout=600)
    print(receipt.delivered, receipt.dead)

Always accepted = delivered + dead + dropped + deleted + lost + pending. The daemon keeps a receipt
for `spool.receipt_ttl` after the write was published; afterwards, and for an unknown write, it
refuses with NOT_FOUND. A dead item that is retried is pending again.

Waiting polls the daemon, at most once per second: the daemon sends no receipts unasked.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import Any, Final

from forebay.errors import ForebayError
from forebay.exchange import Exchange
from forebay.wire import Members, identifier, number, number_or_none, text_or_none, texts
from forebay.writes import write_id

PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0

Progress = Callable[["Receipt"], None]


class _Asking:
    """The client that a receipt came from; unset if it came from none. It is not one of the fields,
    so only the figures are copied, pickled or printed."""

    __slots__ = ("_receipts",)
    _receipts: "Receipts"


@dataclass(frozen=True, slots=True)
class Receipt(_Asking):
    """The figures at one moment, in items."""

    write: bytes
    published_ms: int
    app: str | None
    version: int | None
    """None if the write was published without a transaction."""
    queues: tuple[str, ...]
    accepted: int
    delivered: int
    dead: int
    dropped: int
    deleted: int
    lost: int
    """Destroyed by damage on the daemon's disk."""
    pending: int
    updated: int = 0
    """In a queue with unique keys: items that replaced others, which were deleted."""
    ignored: int = 0
    """How many of the deleted items had a key that was taken when they became visible."""
    conflict: int = 0
    """The same, in a queue that rejects them, or if the other item could not be replaced."""

    def wait(self, *, timeout: float | None = None, progress: Progress | None = None) -> "Receipt":
        """Waits until nothing is pending; see `Client.wait_receipt`. ForebayError if this receipt
        is a copy, for example a pickled one: it knows no client or Spark session to ask."""
        asking: Receipts | None = getattr(self, "_receipts", None)
        if asking is None:
            write = self.write.hex()
            raise ForebayError(
                f"this receipt of write {write} is figures alone, with no client to ask for newer "
                f"ones: call client.wait_receipt({write!r}) with a client of the daemon that has "
                f"the write, or `forebay receipt {write} --wait` on its host"
            )
        return asking.wait_receipt(self.write, timeout=timeout, progress=progress)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, as in docs/protocol.md. Figures about keys are left out if they are 0."""
        figures = asdict(self)
        for name in ("updated", "ignored", "conflict"):
            if not figures[name]:
                del figures[name]
        return {**figures, "write": self.write.hex(), "queues": list(self.queues)}


class StillPending(ForebayError):
    """The time to wait for a receipt is over, and not all of its items are settled."""

    def __init__(self, receipt: Receipt) -> None:
        super().__init__(f"{receipt.pending:,} of {receipt.accepted:,} items are still pending")
        self.receipt = receipt
        """The last receipt that was seen."""


class Receipts:
    """The part of a client that is about receipts."""

    _exchange: Exchange

    def receipt(self, write: bytes | str) -> Receipt:
        """The receipt of a write, as of now."""
        members = {"write": write_id(write).hex()}
        receipt = read_receipt(self._exchange.perform("receipt.show", members))
        return asked_by(self, receipt)

    def wait_receipt(
        self,
        write: bytes | str,
        *,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Receipt:
        """Waits until nothing is pending, for ever or for `timeout` seconds; then it raises
        StillPending. It calls `progress` with each receipt that it sees, including the last."""
        deadline = None if timeout is None else monotonic() + timeout
        pause = PAUSE_MIN_S
        while True:
            receipt = self.receipt(write)
            if progress is not None:
                progress(receipt)
            if not receipt.pending:
                return receipt
            left = PAUSE_MAX_S if deadline is None else deadline - monotonic()
            if left <= 0:
                raise StillPending(receipt)
            sleep(min(pause, left))
            pause = min(pause * 2, PAUSE_MAX_S)


def asked_by(receipts: Receipts, receipt: Receipt) -> Receipt:
    """The same receipt, whose `wait` asks `receipts`."""
    object.__setattr__(receipt, "_receipts", receipts)
    return receipt


def read_receipt(result: Members) -> Receipt:
    """Raises BadFrame if it is not a receipt."""
    return Receipt(
        write=identifier(result, "write"),
        published_ms=number(result, "published_ms"),
        app=text_or_none(result, "app"),
        version=number_or_none(result, "version"),
        queues=texts(result, "queues"),
        accepted=number(result, "accepted"),
        delivered=number(result, "delivered"),
        dead=number(result, "dead"),
        dropped=number(result, "dropped"),
        deleted=number(result, "deleted"),
        lost=number(result, "lost"),
        pending=number(result, "pending"),
        updated=number(result, "updated") if "updated" in result else 0,
        ignored=number(result, "ignored") if "ignored" in result else 0,
        conflict=number(result, "conflict") if "conflict" in result else 0,
    )
