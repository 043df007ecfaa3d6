"""A real daemon with its HTTP server on a free port of loopback, and a client of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from forebay import Client, connect
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync


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

    def item(self, item_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/api/queue-items/{item_id}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    def lease(self, queue: str, **query: Any) -> dict[str, Any]:
        """The next item of a queue, waited for and leased for an hour."""
        wish = {"queue": queue, "wait_s": 30, "lease_s": 3600, **query}

        def leased() -> dict[str, Any]:
            answer = self.http.get("/api/queue-items/next", params=wish)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        return eventually_sync(leased)

    def until_state(self, item_id: str, state: str) -> dict[str, Any]:
        """The item, once it is in this state."""

        def found() -> dict[str, Any]:
            shown = self.item(item_id)
            assert shown["state"] == state, shown
            return shown

        return eventually_sync(found)

    def until_logged(self, event: str, **fields: object) -> None:
        """Waits for a line of the log that has these fields."""

        def logged() -> None:
            lines = [line for line in self.host.log() if line["event"] == event]
            assert any(fields.items() <= line.items() for line in lines), lines

        eventually_sync(logged)


@contextmanager
def serving_on(
    directory: Path, config: dict[str, Any] | None = None, **http: Any
) -> Iterator[Serving]:
    """`http` are further keys of that section."""
    settings = {**(config or {}), "http": {"listen": "127.0.0.1:0", **http}}
    with running(Host(directory, settings)) as host:
        # The HTTP server is up before the socket is.
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
