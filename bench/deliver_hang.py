"""A handler that never comes back: what a destination is that accepts and says nothing."""

import trio

from forebay import Item


async def never(item: Item) -> None:
    await trio.sleep_forever()
