"""Takes all items of a queue, so that a test sees what became visible."""

from pathlib import Path

from forebay import Item, connect
from tests.eventually import eventually_sync


def pull_all(socket: Path, queue: str) -> list[Item]:
    """All items that the queue holds, until it holds none."""
    items: list[Item] = []

    def emptied() -> None:
        held = client.stats()["queues"].get(queue, {}).get("held", 0)
        if held:
            with client.lease(queue, 10_000, wait_s=1, bytes_max=8 << 20, lease_s=3600) as lease:
                items.extend(lease)
        assert not held, f"{queue} held {held} items, {len(items)} were taken"

    with connect(socket) as client:
        eventually_sync(emptied)
    return items


def texts(items: list[Item]) -> list[str]:
    return sorted(item.text for item in items)


def staged(socket: Path, queue: str) -> int:
    """How many items are staged for this queue."""
    with connect(socket) as client:
        return int(client.stats()["queues"].get(queue, {"staged": 0})["staged"])


def until_nothing_is_staged(socket: Path, queue: str) -> None:
    def nothing() -> None:
        assert staged(socket, queue) == 0

    eventually_sync(nothing)
