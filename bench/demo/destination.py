"""The demonstration's destination: a CRM that fails now and then, and remembers what it got.

    python -m bench.demo.destination

Prints its port. A POST takes items as NDJSON. It is down (503) for a while after its first
requests, so that the breaker opens; later every 50th request fails (500), and customers that it
does not know are refused for good (422), one by one. GET / tells what came.
"""

import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

UP_REQUESTS: Final = 40
DOWN_S: Final = 4.0
FAILS_EVERY: Final = 50
UNKNOWN_EVERY: Final = 2000


class Memory:
    """What came, and what was answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: Counter[int] = Counter()
        self._down_until: float | None = None
        self._items: Counter[str] = Counter()
        """Deliveries that were taken, by item id."""
        self._events: Counter[str] = Counter()
        """The same by what the payload says it is."""
        self._refused = 0
        self._senders: Counter[str] = Counter()
        """Deliveries that were taken, by the path of the request: each sender may have its own."""

    def answer(self, body: bytes, sender: str = "/") -> tuple[int, dict[str, Any]]:
        """The status and the body of the answer to a batch."""
        with self._lock:
            status = self._status()
            self._answers[status] += 1
            if status != 200:
                return status, {"error": "the CRM is down" if status == 503 else "an odd failure"}
            items = [json.loads(line) for line in body.splitlines()]
            results = [self._take(item) for item in items]
            self._senders[sender] += sum(result["status"] == 200 for result in results)
            return 200, {"results": results}

    def _status(self) -> int:
        requests = self._answers.total()
        if requests >= UP_REQUESTS and self._down_until is None:
            self._down_until = time.monotonic() + DOWN_S
        if self._down_until is not None and time.monotonic() < self._down_until:
            return 503
        return 500 if requests % FAILS_EVERY == FAILS_EVERY - 1 else 200

    def _take(self, item: dict[str, Any]) -> dict[str, Any]:
        event = json.loads(item["payload"])
        if event["event_id"] % UNKNOWN_EVERY == 0:
            self._refused += 1
            return {"id": item["id"], "status": 422, "error": "no such customer"}
        self._items[item["id"]] += 1
        self._events[f"{event['customer_id']}/{event['event_id']}"] += 1
        return {"id": item["id"], "status": 200}

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {
                "taken": self._items.total(),
                "items": len(self._items),
                "events": len(self._events),
                "refused": self._refused,
                "answers": dict(self._answers),
                "senders": dict(self._senders),
            }


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    memory = Memory()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(*self.memory.answer(body, self.path))

    def do_GET(self) -> None:
        self._send(200, self.memory.report())

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing: the demonstration has a board of its own."""


class Server(ThreadingHTTPServer):
    disable_nagle_algorithm = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A daemon that is killed leaves its connections: nothing to say about that."""


def main() -> None:
    server = Server(("127.0.0.1", 0), Answering)
    print(server.server_address[1], flush=True)
    threading.Thread(target=_wait_for_the_end, args=(server,), daemon=True).start()
    server.serve_forever()


def _wait_for_the_end(server: Server) -> None:
    """The parent process holds the other end of this process's standard input."""
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
