"""A real daemon with its HTTP server on a free port of loopback, and a client of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from forebay import Client, connect
from tests.ops.commands import HANG_S, PARTS, Host, running


@dataclass(slots=True)
class Serving:
    host: Host
    address: str
    http: httpx.Client

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self) -> Client:
        """One of the Unix socket."""
        return connect(self.host.socket, wait=HANG_S)

    def push(self, queue: str, *payloads: str) -> None:
        with self.client() as client:
            client.push(queue, [payload.encode() for payload in payloads])

    def books(self, queue: str) -> dict[str, int]:
        """What is not 0, without the parts of `held`: items move while a test looks."""
        with self.client() as client:
            found = client.stats()["queues"].get(queue, {})
        return {name: count for name, count in found.items() if count and name not in PARTS}


@contextmanager
def serving_on(
    directory: Path, config: dict[str, Any] | None = None, **http: Any
) -> Iterator[Serving]:
    """`http` are further keys of that section."""
    settings = {**(config or {}), "http": {"listen": "127.0.0.1:0", **http}}
    with running(Host(directory, settings)) as host:
        address = (host.state_dir / "http.address").read_text().strip()
        with httpx.Client(base_url=address, trust_env=False, timeout=HANG_S) as client:
            yield Serving(host, address, client)


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The answer, which must be this problem."""
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    ), answer.text
    found: dict[str, Any] = answer.json()
    assert found["type"] == f"urn:forebay:problem:{kind}", found
    assert found["status"] == status
    return found
