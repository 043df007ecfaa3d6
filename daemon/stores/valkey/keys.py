"""The names of keys, and the scripts by name."""

from collections.abc import Sequence
from typing import Final

from daemon.stores.valkey import lua_moves, lua_owners
from daemon.stores.valkey.server import script

ENTER: Final = script(lua_moves.ENTER)
LEASE: Final = script(lua_moves.LEASE)
END: Final = script(lua_moves.END)
EXTEND: Final = script(lua_moves.EXTEND)
EXPIRE: Final = script(lua_moves.EXPIRE)
LOOK: Final = script(lua_owners.LOOK)
WITHDRAW: Final = script(lua_owners.WITHDRAW)
PRESENT: Final = script(lua_owners.PRESENT)
LOCATE: Final = script(lua_owners.LOCATE)
FLOWS: Final = script(lua_owners.FLOWS)
KEEP_VALID: Final = script(lua_owners.KEEP_VALID)
MAIL: Final = script(lua_owners.MAIL)
MAIL_DONE: Final = script(lua_owners.MAIL_DONE)

_OF_QUEUE: Final = ("state", "due", "later", "slices", "all", "runs", "leases", "valid")


def queue_keys(prefix: str, queue: str) -> Sequence[str]:
    """Those of one queue, in the order in which scripts expect them; `state` comes first."""
    return [f"{prefix}:{{{queue}}}:{name}" for name in _OF_QUEUE]


def queues_key(prefix: str) -> str:
    """The set of all queues."""
    return f"{prefix}:queues"


def daemon_queues_key(prefix: str, daemon: bytes) -> str:
    """The set of queues that a daemon has entered something into."""
    return f"{prefix}:daemon:{daemon.hex()}:queues"


def generation_key(prefix: str) -> str:
    return f"{prefix}:generation"
