"""Secrets of the configuration are shown nowhere: one marker stands wherever a secret can be, and
everything the daemon and the command line say is searched for it."""

import json
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forebay import Client, Refused
from tests.daemon.cli.commands import Host
from tests.daemon.http.serving import Serving, serving_on
from tests.eventually import eventually_sync

MARK = "Hush4711"
TOKENS = {"read": f"{MARK}-read-token-that-is-long", "admin": f"{MARK}-admin-token-that-is-long"}
CONTROL: tuple[tuple[str, dict[str, Any]], ...] = (
    ("queues.ls", {}),
    ("queues.show", {"queue": "crm"}),
    ("queues.show", {"queue": "program"}),
    ("queues.show", {"queue": "made"}),
    ("queues.pause", {"queue": "made"}),
    ("queues.resume", {"queue": "made"}),
    ("queues.stats", {"queue": "crm"}),
    ("breakers.ls", {}),
    ("cron.list", {}),
    ("cron.show", {"name": "nightly"}),
    ("trigger.list", {}),
    ("trigger.show", {"name": "hourly"}),
    ("dead.find", {}),
)
REST = (
    *("/queue-metrics", "/queue-metrics/schedules", "/queue-metrics/events", "/openapi.json"),
    *("/api/v2/queues/crm", "/api/v2/queues/made", "/api/v2/queues/crm/stats"),
    *("/api/v2/schedules/nightly", "/api/v2/triggers/hourly"),
)
"""Beside all that need no parameter."""
STREAM = "/api/v2/events"
COMMANDS = (
    *("queues ls", "queues ls --json", "queues show crm", "queues show crm --json"),
    *("queues show program", "queues show made", "config show", "config show --json"),
    *("config show --origins", "config show --origins --json", "config check", "stats"),
    *("stats --json", "top --once", "dead ls", "dead ls --json", "dead groups", "breakers ls"),
    *("breakers ls --json", "cron ls", "cron show nightly", "triggers ls", "triggers show hourly"),
    *("history crm", "writes ls", "streams ls"),
)


class Echo(BaseHTTPRequestHandler):
    """Refuses everything, and repeats what it was sent, as many servers do."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        url = f"http://user:{MARK}@{self.headers['Host']}{self.path}"
        body = f"Cannot POST {self.path} with {self.headers['Authorization']} to {url}".encode()
        self.send_response(400)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def secretive_config(url: str, directory: Path) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {MARK}", "X-Api-Key": MARK}
    program = ["sh", "-c", "exit 65", "--token", MARK, f"--password={MARK}"]
    http = {"type": "http", "url": f"{url}/in?token={MARK}&sig={MARK}", "headers": headers}
    return {
        "queues": {
            "crm": {"handler": http},
            "program": {
                "handler": {
                    "type": "command",
                    "command": program,
                    "environment": {"DB_PASSWORD": MARK, "DB": f"postgresql://u:{MARK}@h/d"},
                }
            },
        },
        "schedules": {"nightly": {"queue": "later", "every": "1h", "headers": {"token": MARK}}},
        "triggers": {
            "hourly": {
                "type": "TIME",
                "target": "later",
                "every": "1h",
                "headers": {"api_key": MARK},
            }
        },
        "notifications": {"pager": {"webhook": {"url": f"{url}/hooks/{MARK}", "headers": headers}}},
        "events": {"mode": "all", "directory": str(directory / "events"), "format": "ndjson"},
    }


@pytest.fixture(scope="module")
def secretive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("secretive")
    files = {}
    for name, token in TOKENS.items():
        path = directory / name
        path.write_text(token)
        path.chmod(0o600)
        files[f"{name}_token_file"] = str(path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        config = secretive_config(url, directory)
        with serving_on(directory, config, rate_limit=0, **files) as served:
            served.http.headers["Authorization"] = f"Bearer {TOKENS['admin']}"
            with served.client() as client:
                make_a_queue(client, url)
            for queue in ("crm", "program", "made"):
                served.push(queue, "one")

            def dead() -> bool:
                return all(
                    served.host.books(queue).get("dead") for queue in ("crm", "program", "made")
                )

            def not_told() -> bool:
                said = served.host.log()
                return any(line["event"] == "notifications.not_sent" for line in said)

            eventually_sync(dead)
            eventually_sync(not_told)
            yield served
        server.shutdown()


def make_a_queue(client: Client, url: str) -> None:
    handler = {"type": "http", "url": f"{url}/?key={MARK}", "headers": {"Cookie": f"a={MARK}"}}
    client.control("queues.add", queue="made", settings={"handler": handler})


def test_a_mask_is_not_taken_for_the_secret(secretive: Serving) -> None:
    with secretive.client() as client:
        changed = client.control("queues.set", queue="made", settings={"max_retries": 1})
        assert MARK not in json.dumps(changed)
        with pytest.raises(Refused, match="a secret is masked"):
            client.control("queues.set", queue="made", settings=changed["settings"])


@pytest.mark.parametrize("op, fields", CONTROL)
def test_the_socket_shows_no_secret(secretive: Serving, op: str, fields: dict[str, Any]) -> None:
    with secretive.client() as client:
        answer = client.control(op, **fields)
    assert MARK not in json.dumps(answer)


def test_http_shows_no_secret(secretive: Serving) -> None:
    described = secretive.http.get("/openapi.json").json()["paths"]
    plain = [path for path, operations in described.items() if "get" in operations]
    plain = [path for path in plain if "{" not in path and path != STREAM]
    for path in (*REST, *plain):
        answer = secretive.http.get(path)
        assert answer.status_code in (200, 422), (path, answer.text)
        assert MARK not in answer.text, path


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_shows_no_secret(secretive: Serving, command: str) -> None:
    done = secretive.host.command(*command.split())
    assert done.returncode == 0, done.stderr.decode()
    assert MARK.encode() not in done.stdout + done.stderr


def test_a_dead_letter_shows_no_secret(secretive: Serving) -> None:
    for line in secretive.host.ok("dead", "ls", "--json").splitlines():
        letter = json.loads(line)
        for command in ("dead", "items"):
            shown = secretive.host.ok(command, "show", letter["id"])
            assert MARK not in shown
            assert "***" in shown or letter["queue"] == "program"


def test_the_log_and_the_event_files_hold_no_secret(secretive: Serving) -> None:
    assert MARK not in (secretive.host.directory / "daemon.log").read_text()

    def written() -> None:
        files = list((secretive.host.directory / "events").iterdir())
        text = "".join(read_events(path) for path in files)
        assert '"dead"' in text
        assert MARK not in text

    eventually_sync(written)


def read_events(path: Path) -> str:
    """Of a file that is still being written, too."""
    text, data = b"", path.read_bytes()
    while data:
        member = zlib.decompressobj(wbits=31)
        text += member.decompress(data)
        data = member.unused_data
    return text.decode(errors="replace")


def test_secrets_are_printed_when_they_are_asked_for(secretive: Serving) -> None:
    assert MARK in secretive.host.ok("config", "show", "--secrets")


@pytest.mark.parametrize(
    "settings",
    [
        {"cold": {"type": "postgres", "url": f"postgresql://u:{MARK}@127.0.0.1:1/d"}},
        {"cold": {"type": "postgres", "url": f"postgresql://u:{MARK}/x@127.0.0.1:1/d"}},
        {"cold": {"type": "postgres", "url": f"postgresql://127.0.0.1:1/d?password={MARK}"}},
        {"cold": {"type": "sqlite", "url": f"postgresql://u:{MARK}@127.0.0.1:1/d"}},
        {"cold": {"type": "postgres", "url": [f"postgresql://u:{MARK}@127.0.0.1:1/d"]}},
        {
            "warm": {"type": "valkey", "url": f"redis://u:{MARK}#x@127.0.0.1:1"},
            "cold": {"type": "postgres", "url": "postgresql://127.0.0.1:1/d"},
        },
        {"queues": {"q": {"handler": {"type": "http", "url": f"http://u:{MARK}@h/"}}}},
        {"queues": {"q": {"handler": {"type": "http", "url": f"ftp://h/?token={MARK}"}}}},
        {
            "queues": {
                "q": {
                    "handler": {
                        "type": "http",
                        "url": "http://h/",
                        "headers": {"Authorization": [MARK]},
                    }
                }
            }
        },
    ],
)
def test_what_is_wrong_is_said_without_secrets(tmp_path: Path, settings: dict[str, Any]) -> None:
    host = Host(tmp_path, {"http": {"listen": None}} | settings)
    for command in (["config", "check"], ["config", "show"], ["run", "--set", "cold.timeout=1s"]):
        done = host.command(*command)
        assert MARK.encode() not in done.stdout + done.stderr, done.stderr.decode()
    assert done.returncode != 0
    assert b"internal error" not in done.stderr
