"""The real daemon tells of dead letters: by webhook, in a queue, on /metrics and in the events."""

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest

from daemon.http.routes.dead import LETTERS
from tests.daemon.cli.commands import HANG_S
from tests.daemon.http.serving import Serving, serving_on
from tests.eventually import eventually_sync

got: Queue[dict[str, Any]] = Queue()


class Refusing(BaseHTTPRequestHandler):
    """A destination that takes nothing, and beside it a webhook."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/hook"):
            got.put(json.loads(body))
        self.send_response(200 if self.path.startswith("/hook") else 400)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        http = {"handler": {"type": "http", "url": url}}
        config = {
            "queues": dict.fromkeys(("crm", "mail", "jobs"), http),
            "triggers": {
                "embed": {
                    "type": "QUEUE",
                    "queue": "documents",
                    "target": "jobs",
                    "polling_interval": "100ms",
                }
            },
            "notifications": {
                "pager": {"queues": ["crm"], "webhook": {"url": f"{url}/hook/s3cret"}},
                "board": {"queues": ["crm"], "queue": "ops", "window": "1d"},
                "later": {"queues": ["nothing"], "queue": "ops-later"},
                "jobs": {"on": ["trigger_failed"], "queues": ["documents"], "queue": "oncall"},
            },
        }
        with serving_on(tmp_path_factory.mktemp("notifying"), config, rate_limit=0) as serving:
            yield serving
        server.shutdown()
        thread.join()


def told(served: Serving, queue: str = "ops") -> dict[str, Any]:
    """The payload of the next item of a notification queue."""
    with served.client() as client, client.lease(queue, 1, wait_s=HANG_S) as leased:
        (item,) = leased
        assert item.flow == "notifications"
        payload: dict[str, Any] = json.loads(item.payload)
        assert item.headers["notice"] == payload["notice"] == item.id.rpartition("-")[0]
        return payload


@pytest.fixture(scope="module")
def notices(served: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of three items that the CRM refuses: by webhook and in the queue."""
    served.push("crm", "a", "b", "c")
    return got.get(timeout=HANG_S), told(served)


def test_dead_letters_are_told(
    served: Serving, notices: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    by_hook, in_queue = notices
    assert (by_hook["notification"], in_queue["notification"]) == ("pager", "board")
    # The notice may come before the letters are recorded.
    served.host.until_books({"accepted": 3, "dead": 3}, "crm")
    letters = served.http.get(LETTERS, params={"queue": "crm"}).json()["letters"]
    for notice in (by_hook, in_queue):
        assert (notice["on"], notice["queue"], notice["count"]) == ("dead", "crm", 3)
        assert notice["error_type"] == "client_error"
        assert notice["error"].startswith("400 from http://127.0.0.1")
        assert set(notice["ids"]) == {letter["id"] for letter in letters}


@pytest.mark.usefixtures("notices")
def test_the_events_and_the_figures_show_it(served: Serving) -> None:
    def noticed() -> None:
        events = served.http.get("/api/v2/events/recent").json()["events"]
        notices = [event for event in events if event["kind"] == "notice"]
        found = {(event["destination"], event["state"], event["queue"]) for event in notices}
        of_crm = {notice for notice in found if "crm" in notice}
        assert of_crm == {("pager", "dead", "crm"), ("board", "dead", "crm")}

    eventually_sync(noticed)
    figures = {
        'forebay_sent_notices_total{notification="pager",way="webhook"} 1',
        'forebay_sent_notices_total{notification="board",way="queue"} 1',
        'forebay_failed_notices_total{notification="pager",way="webhook"} 0',
    }

    def counted() -> None:
        shown = served.http.get("/metrics").text.splitlines()
        assert figures <= set(shown), [line for line in shown if "_notices_total{" in line]

    # What is shown there is up to a second old.
    eventually_sync(counted)
    settings = served.http.get("/api/v2/configuration").json()["settings"]
    assert settings["notifications"]["pager"]["webhook"]["url"].endswith("/***")


def test_a_trigger_that_fails_is_told(served: Serving) -> None:
    """Its job is refused for good by the destination of its target queue."""
    served.push("documents", "x")
    notice = told(served, "oncall")
    assert (notice["on"], notice["trigger"], notice["queue"]) == ("trigger_failed", "embed", None)
    assert notice["text"].startswith("trigger embed has failed: job ")


def test_a_reload_tells_others(served: Serving) -> None:
    host = served.host
    assert host.daemon is not None
    config = json.loads(host.config.read_text())
    config["notifications"]["later"]["queues"] = ["mail"]
    host.config.write_text(json.dumps(config))
    host.daemon.send_signal(signal.SIGHUP)
    host.until_logged("daemon.reloaded")
    served.push("mail", "x")
    assert told(served, "ops-later")["queue"] == "mail"
