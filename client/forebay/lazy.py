"""Lazy packages: a name is imported when it is first used.

    __getattr__, __dir__ = lazily(__name__, {"Client": "client"})

A Spark task that only encodes runs does not pay for the client, and a command that only prints
help pays for neither.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`; `homes` maps each name to its module."""
    names = vars(sys.modules[package])

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = names[name] = getattr(import_module(f"{package}.{home}"), name)
        return value

    def listed() -> list[str]:
        return sorted(names.keys() | homes.keys())

    return get, listed
