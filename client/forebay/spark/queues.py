"""Whether the daemon has the queue that was asked for: of a write and of a read, on the driver.

A daemon that creates queues on demand has them all. What it can't do: know of the daemons on other
hosts, which tasks may reach.
"""

from forebay.client import Client
from forebay.errors import Refused
from forebay.spark.options import OptionError


def check_queue(client: Client, queue: str) -> None:
    """Raises OptionError if the queue does not exist and the daemon does not create it."""
    try:
        client.control("queue.show", queue=queue)
    except Refused as problem:
        if problem.code != "NOT_FOUND":
            raise
        listed = client.control("queues.list")
        if listed["creates_queues"]:
            return
        there = ", ".join(at["queue"] for at in listed["queues"]) or "none"
        raise OptionError(
            "queue", queue, f"the daemon has no such queue, and creates none; there are: {there}"
        ) from problem
