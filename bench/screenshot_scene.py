"""A daemon at work for the page's pictures: real queues, real destinations, some in trouble.

- crm: a destination that takes 400 items a second and refuses some: a backlog, dead letters
- search: one that keeps up
- partner-eu: one that is not there: an open breaker
- scoring: a Python function, paused
- webhooks: consumers that lease, one of which is slow
- landing: files
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import sin
from typing import Any, Final

import forebay
from bench.daemon_process import Daemon, Places, places

HOST: Final = "127.0.0.1"
PUSH_EVERY_S: Final = 1.0
LEASE_S: Final = 3600.0
FLOWS: Final = {
    "crm": (("crm-feed", "upsert-customer", 700), ("nightly", "close-account", 60)),
    "search": (("catalogue", "index", 900), ("catalogue", "remove", 90)),
    "partner-eu": (("orders", "announce", 120),),
    "scoring": (("crm-feed", "score", 40),),
    "webhooks": (("orders", "notify", 30),),
    "landing": (("audit", "append", 500),),
}
"""Of each queue: flow, action, and items a second, more or less."""


class Destination(BaseHTTPRequestHandler):
    """Refuses every 150th item."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
        items = [json.loads(line) for line in lines]
        results = [
            {"id": item["id"], "status": 422, "error": "the e-mail address is not valid"}
            for item in items
            if self.path == "/crm" and json.loads(item["payload"])["customer"] % 150 == 7
        ]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


def score(item: forebay.Item) -> None:
    """What `scoring` calls."""


@dataclass(slots=True)
class ShownDaemon(Daemon):
    """With a page."""

    def _settings(self) -> dict[str, Any]:
        # dataclass(slots=True) makes the class anew, which a bare super() does not follow.
        settings = super(ShownDaemon, self)._settings()
        return settings | {"http": {"listen": f"{HOST}:0"}}

    @property
    def address(self) -> str:
        return (self.state_dir / "http.address").read_text().strip()


@contextmanager
def scene(seconds: float) -> Iterator[ShownDaemon]:
    """The daemon, after so many seconds of work, and still at work."""
    server = ThreadingHTTPServer((HOST, 0), Destination)
    server.daemon_threads = True
    over = threading.Event()
    with places("screenshots") as where, ShownDaemon(where, queues=queues(server, where)) as daemon:
        parts = [server.serve_forever, lambda: push(daemon, over), lambda: consume(daemon, over)]
        threads = [threading.Thread(target=part, daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        with daemon.connect() as client:
            client.push("scoring", [b"{}"], flow="crm-feed", action="score")
            client.control("queues.pause", queue="scoring")
        over.wait(seconds)
        try:
            yield daemon
        finally:
            over.set()
            server.shutdown()
            for thread in threads:
                thread.join()
            server.server_close()


def queues(server: ThreadingHTTPServer, where: Places) -> dict[str, Any]:
    base = f"http://{HOST}:{server.server_port}"
    nobody = f"http://{HOST}:9"
    return {
        "crm": {"handler": {"type": "http", "url": f"{base}/crm"}, "rate_limit": 400},
        "search": {"handler": {"type": "http", "url": f"http://localhost:{server.server_port}/"}},
        "partner-eu": {
            "handler": {"type": "http", "url": f"{nobody}/orders"},
            "backoff": {"initial": "1s"},
        },
        "scoring": {"handler": {"type": "python", "function": "bench.screenshot_scene:score"}},
        "landing": {"handler": {"type": "file", "path": str(where.sockets / "landing")}},
    }


def push(daemon: Daemon, over: threading.Event) -> None:
    """Waves, so that the charts have something to show."""
    customer, tick = 0, 0
    with daemon.connect() as client:
        while not over.wait(PUSH_EVERY_S):
            tick += 1
            for place, (queue, flows) in enumerate(FLOWS.items()):
                for flow, action, most in flows:
                    items = int(most * (0.6 + 0.4 * sin(tick / 9 + 2 * place)))
                    payloads = [
                        f'{{"customer": {customer + n}, "region": "eu-west", "amount": {n % 90}.5}}'
                        for n in range(items)
                    ]
                    customer += items
                    headers = {"correlation_id": f"{flow}-{tick}"}
                    client.push(queue, payloads, flow=flow, action=action, headers=headers)


def consume(daemon: Daemon, over: threading.Event) -> None:
    """One consumer that holds what it has, one that works."""
    with (
        daemon.connect() as slow,
        daemon.connect() as quick,
        slow.lease("webhooks", 8, wait_s=30, lease_s=LEASE_S, consumer="pod-1"),
    ):
        while not over.wait(PUSH_EVERY_S):
            with quick.lease("webhooks", 25, wait_s=1, consumer="pod-2"):
                over.wait(0.2)
