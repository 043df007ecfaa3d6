"""A cluster of three primaries, one of them with a replica where a test wants one: real processes.

A silent node is waited for until a test wants another to stand in for it (`be_impatient_but`), so
that a slow machine takes no node for dead. The slot of a queue can be moved step by step, as
`valkey-cli --cluster reshard` does it, so that a test can work in between.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from redis.crc import key_slot

from tests.daemon.stores.valkey.sentinels import info, until
from tests.servers.valkey import ValkeyServer, binaries

SLOTS = 16384
NODE_TIMEOUT_MS = 1000
PATIENT_MS = 600_000
OPTIONS = (
    *("--cluster-enabled", "yes", "--cluster-node-timeout", str(PATIENT_MS)),
    *("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"),
)


class Node(ValkeyServer):
    @property
    def id(self) -> bytes:
        found: bytes = self.command("CLUSTER", "MYID")
        return found


class Cluster:
    def __init__(self, directory: Path, name: str, nodes: int) -> None:
        binary = binaries()[name]
        self.nodes: list[Node] = []
        for number in range(nodes):
            (directory / str(number)).mkdir()
            self.nodes.append(Node(directory / str(number), binary, *OPTIONS, has_port=True))

    @property
    def primaries(self) -> list[Node]:
        return self.nodes[:3]

    @property
    def url(self) -> str:
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis-cluster://{addresses}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        share = SLOTS // len(self.primaries) + 1
        for number, node in enumerate(self.primaries):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first, last = number * share, min((number + 1) * share, SLOTS) - 1
            node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        for node in self.nodes:
            until(partial(self.is_whole, node))

    def is_whole(self, node: Node) -> bool:
        found = state(node)
        return found["cluster_state"] == "ok" and int(found["cluster_known_nodes"]) == len(
            self.nodes
        )

    def replicate(self, primary: Node) -> Node:
        """The fourth one becomes the replica of a primary."""
        replica = self.nodes[3]
        replica.command("CLUSTER", "REPLICATE", primary.id)
        until(lambda: b"master_link_status:up" in info(replica))
        return replica

    def be_impatient_but(self, silent: Node) -> None:
        """From now on a node that is silent for a second is taken for dead, by all others."""
        for node in self.nodes:
            if node is not silent:
                node.config_set("cluster-node-timeout", str(NODE_TIMEOUT_MS))

    def of_queue(self, queue: str) -> Node:
        """The primary that has a queue, as the first node knows it."""
        slot = key_slot(queue.encode())
        for first, last, (_, port, *_), *_ in self.nodes[0].command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody has the slot of {queue}")

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Move:
    """The slot of a queue, on its way to another primary."""

    def __init__(self, cluster: Cluster, queue: str, *, key: str | None = None) -> None:
        self.slot = key_slot((key or queue).encode())
        self.source = cluster.of_queue(key or queue)
        self.target = next(node for node in cluster.primaries if node is not self.source)
        self._primaries = cluster.primaries

    def begin(self) -> None:
        self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.id)

    def carry(self, keys: int) -> int:
        """Moves so many keys at most; how many there were."""
        found = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, keys)
        if found:
            where = ("127.0.0.1", self.target.port, "", 0, 5000)
            self.source.command("MIGRATE", *where, "KEYS", *found)
        return len(found)

    def end(self) -> None:
        while self.carry(100):
            pass
        for node in (self.target, self.source, *self._primaries):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)


def state(node: ValkeyServer) -> dict[str, str]:
    found = node.command("CLUSTER", "INFO")
    if isinstance(found, dict):
        return found
    return dict(line.split(":", 1) for line in found.decode().split())


@contextmanager
def cluster(nodes: int = 3, name: str = "valkey") -> Iterator[Cluster]:
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="fb-cluster-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        made = Cluster(directory, name, nodes)
        stack.callback(made.close)
        made.start()
        yield made
