"""Functions of a python handler that give away a secret of the daemon's environment."""

import os

from forebay import Item, Reject


def raises(item: Item) -> None:
    raise Reject(f"cannot log in with {os.environ['HUSH_ENV']}")


def returns(item: Item) -> dict[str, str]:
    return {"logged_in_with": os.environ["HUSH_ENV"]}
