"""A daemon with queues that wait, run, fail and are paused, for the page to show.

Nothing is staged in the page: items are pushed, leased and delivered by the real daemon.

- crm: nobody takes its items; more than fit into warm, in two flows
- search, archive, kept: nobody takes theirs either; what is done of `kept` stays in its history
- mail, letters, cards, notes: a command that refuses everything until the file `mended` exists:
  dead letters
"""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemon.http.listening import ADDRESS_FILE
from forebay import connect
from forebay.client import Client
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

REFUSED = 65
REFUSING = ("mail", "letters", "cards", "notes")
WAITING = 1250
SCHEDULES = {
    "new-year": {"queue": "reports", "cron": "30 2 1 1 *", "zone": "Asia/Tokyo"},
    **{f"many-{n:03d}": {"queue": f"q{n % 7}", "every": f"{n + 30}d"} for n in range(200)},
}


class World:
    def __init__(
        self,
        directory: Path,
        http: dict[str, Any] | None = None,
        token: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        """`more`: of the configuration."""
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.mended = directory / "mended"
        refuse = f"echo 'no such mailbox' >&2; exit {REFUSED}"
        script = f"cat > /dev/null; test -e '{self.mended}' || {{ {refuse}; }}"
        handler = {
            "type": "command",
            "command": ["/bin/sh", "-c", script],
            "permanent_codes": [REFUSED],
        }
        config = {
            "http": {"listen": "127.0.0.1:0", **(http or {})},
            "queues": {
                "crm": {"warm_max_items": 1000, "description": "customer updates"},
                "search": {},
                "kept": {"history": "all"},
                **{name: {"handler": handler, "history": "all"} for name in REFUSING},
            },
            **(more or {}),
        }
        self.host = Host(directory, config)

    @contextmanager
    def started(self) -> Iterator["World"]:
        """With nothing in it."""
        with running(self.host):
            yield self

    @contextmanager
    def running(self) -> Iterator["World"]:
        with self.started():
            self.push("crm", 1200, flow="nightly", action="upsert")
            self.push("crm", 3, flow="live", action="upsert")
            self.push("search", 40, flow="nightly", action="index")
            self.push("archive", 7, flow="Landing", action="append")
            self.until_shown(WAITING)
            yield self

    @property
    def address(self) -> str:
        return (self.host.state_dir / ADDRESS_FILE).read_text().strip()

    @property
    def page(self) -> str:
        return f"{self.address}/queue-metrics"

    def push(self, queue: str, items: int, **options: Any) -> None:
        with self.client() as client:
            client.push(queue, (f'{{"n": {n}}}' for n in range(items)), **options)

    def until_shown(self, items: int) -> None:
        """Waits until the metrics, which are up to a second old, have so many that wait."""
        address = f"{self.address}/api/v2/metrics/queues/detailed"
        request = urllib.request.Request(address, headers=self.headers)

        def shown() -> None:
            with urllib.request.urlopen(request) as answer:
                tiers = json.load(answer)
            assert sum(entry["count"] for entry in tiers["warm"] + tiers["cold"]) == items, tiers

        eventually_sync(shown)

    def client(self) -> Client:
        return connect(self.host.socket, wait=HANG_S)
