"""The client of forebay: the run codec, the wire protocol and a blocking client.

    with forebay.connect() as client:
        client.push("crm", ["one item", "another"])

Names are imported when they are first used: a Spark task that only encodes runs does not pay for
the client, and a command that only prints help pays for neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.client import Client, connect
    from forebay.control import Control
    from forebay.errors import BadFrame, BadRun, ForebayError, LeaseLost, Refused, Unreachable
    from forebay.item import Item, Reject, Retry
    from forebay.leases import Lease
    from forebay.pusher import Pusher
    from forebay.run import Run, RunHead, encode_columns, encode_run, read_run
    from forebay.tally import PushResult

__all__ = [
    "BadFrame",
    "BadRun",
    "Client",
    "Control",
    "ForebayError",
    "Item",
    "Lease",
    "LeaseLost",
    "PushResult",
    "Pusher",
    "Refused",
    "Reject",
    "Retry",
    "Run",
    "RunHead",
    "Unreachable",
    "connect",
    "encode_columns",
    "encode_run",
    "read_run",
]

_HOMES = {
    "BadFrame": "errors",
    "BadRun": "errors",
    "Client": "client",
    "Control": "control",
    "ForebayError": "errors",
    "Item": "item",
    "Lease": "leases",
    "LeaseLost": "errors",
    "PushResult": "tally",
    "Pusher": "pusher",
    "Refused": "errors",
    "Reject": "item",
    "Retry": "item",
    "Run": "run",
    "RunHead": "run",
    "Unreachable": "errors",
    "connect": "client",
    "encode_columns": "run",
    "encode_run": "run",
    "read_run": "run",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOMES.keys())
