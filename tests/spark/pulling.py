"""Takes all items of a queue, so that a test sees what became visible."""

from pathlib import Path

from forebay import Item, connect


def pull_all(socket: Path, queue: str) -> list[Item]:
    """All items that the queue holds, until it holds none."""
    items: list[Item] = []
    with connect(socket) as client:
        while client.stats()["queues"].get(queue, {}).get("held"):
            with client.lease(queue, 10_000, wait_s=5, bytes_max=8 << 20) as lease:
                items += lease
    return items


def texts(items: list[Item]) -> list[str]:
    return sorted(item.text for item in items)


def staged(socket: Path, queue: str) -> int:
    """How many items are staged for this queue."""
    with connect(socket) as client:
        return int(client.stats()["queues"].get(queue, {"staged": 0})["staged"])
