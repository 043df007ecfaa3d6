"""The names of keys, and the scripts by name."""

from collections.abc import Sequence
from typing import Final

from daemon.stores.valkey import lua_looks, lua_moves
from daemon.stores.valkey.server import script

ENTER: Final = script(lua_moves.ENTER)
LEASE: Final = script(lua_moves.LEASE)
END: Final = script(lua_moves.END)
EXTEND: Final = script(lua_moves.EXTEND)
EXPIRE: Final = script(lua_moves.EXPIRE)
EPOCH: Final = script(lua_looks.EPOCH)
LOOK: Final = script(lua_looks.LOOK)
WITHDRAW: Final = script(lua_looks.WITHDRAW)
PRESENT: Final = script(lua_looks.PRESENT)
LOCATE: Final = script(lua_looks.LOCATE)
FLOWS: Final = script(lua_looks.FLOWS)

_OF_QUEUE: Final = ("state", "due", "later", "slices", "all", "runs", "leases")


def queue_keys(prefix: str, queue: str) -> Sequence[str]:
    """Those of one queue, in the order in which scripts expect them; `state` comes first."""
    return [f"{prefix}:rows:{{{queue}}}:{name}" for name in _OF_QUEUE]


def queues_key(prefix: str) -> str:
    """The set of all queues."""
    return f"{prefix}:rows:queues"


def turn_key(prefix: str) -> str:
    """Held by the daemon that compares the queues with the cold store."""
    return f"{prefix}:turn"


def generation_key(prefix: str) -> str:
    return f"{prefix}:generation"
