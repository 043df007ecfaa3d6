"""The client of forebay: the run codec, the wire protocol and a blocking client.

    with forebay.connect() as client:
        client.push("crm", ["one item", "another"])

Names are imported when they are first used: a Spark task that only encodes runs does not pay for
the client, and a command that only prints help pays for neither.
"""

from typing import TYPE_CHECKING

from forebay.lazy import lazily

if TYPE_CHECKING:
    from forebay.client import Client, connect
    from forebay.control import Control
    from forebay.delayed import Delayed, Lock, LockLost, Polled
    from forebay.errors import (
        BadFrame,
        BadRun,
        ForebayError,
        LeaseLost,
        Refused,
        Unreachable,
    )
    from forebay.item import BusinessError, Item, Reject, Retry
    from forebay.keyed import KeyOutcome
    from forebay.leases import Lease
    from forebay.pusher import Pusher
    from forebay.receipts import Receipt, StillPending
    from forebay.run import Run, RunHead, encode_columns, encode_run, read_run
    from forebay.streams import Claim, Fetched, StreamStatus
    from forebay.tally import PushResult
    from forebay.writes import Published, Sealed, Stage, new_write_id

__all__ = [
    "BadFrame",
    "BadRun",
    "BusinessError",
    "Claim",
    "Client",
    "Control",
    "Delayed",
    "Fetched",
    "ForebayError",
    "Item",
    "KeyOutcome",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockLost",
    "Polled",
    "Published",
    "PushResult",
    "Pusher",
    "Receipt",
    "Refused",
    "Reject",
    "Retry",
    "Run",
    "RunHead",
    "Sealed",
    "Stage",
    "StillPending",
    "StreamStatus",
    "Unreachable",
    "connect",
    "encode_columns",
    "encode_run",
    "new_write_id",
    "read_run",
]

_HOMES = {
    "BadFrame": "errors",
    "BadRun": "errors",
    "BusinessError": "item",
    "Claim": "streams",
    "Client": "client",
    "Control": "control",
    "Delayed": "delayed",
    "Fetched": "streams",
    "ForebayError": "errors",
    "Item": "item",
    "KeyOutcome": "keyed",
    "Lease": "leases",
    "LeaseLost": "errors",
    "Lock": "delayed",
    "LockLost": "delayed",
    "Polled": "delayed",
    "Published": "writes",
    "PushResult": "tally",
    "Pusher": "pusher",
    "Receipt": "receipts",
    "Refused": "errors",
    "Reject": "item",
    "Retry": "item",
    "Run": "run",
    "RunHead": "run",
    "Sealed": "writes",
    "Stage": "writes",
    "StillPending": "receipts",
    "StreamStatus": "streams",
    "Unreachable": "errors",
    "connect": "client",
    "encode_columns": "run",
    "encode_run": "run",
    "new_write_id": "writes",
    "read_run": "run",
}


__getattr__, __dir__ = lazily(__name__, _HOMES)
