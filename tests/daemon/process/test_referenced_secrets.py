"""Secrets that the configuration refers to are shown nowhere, even if a destination repeats them.

A marker stands behind every kind of reference, in every place that takes one. Destinations,
programs and functions repeat it wherever they can. Then everything that the daemon and the command
line write or answer is searched for it.
"""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.http.serving import Serving, serving_on
from tests.daemon.process.test_secrets import COMMANDS, STREAM, read_events
from tests.eventually import eventually_sync

MARK = "Hush4711"
VALUES = {kind: f"{MARK}-of-the-{kind}" for kind in ("file", "env", "credential")}
LEAKING = "tests.daemon.process.leaking"


class Repeating(BaseHTTPRequestHandler):
    """Refuses everything with all that it was sent, as it is and as JSON; tokens with 401."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode(errors="replace")
        is_token = self.path == "/token"
        said = f"{self.path} {' '.join(self.headers.values())}"
        text = f"{body} {said}" if is_token else said
        data = json.dumps({"error": text}).encode() if is_token else text.encode()
        self.send_response(401 if is_token else 400)
        self.send_header("Content-Type", "application/json" if is_token else "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def configuration(
    url: str, directory: Path, references: dict[str, dict[str, str]]
) -> dict[str, Any]:
    file, env, credential = references["file"], references["env"], references["credential"]

    def http(**keys: Any) -> dict[str, Any]:
        return {"handler": {"type": "http", "url": f"{url}/in", **keys}}

    login = {"token_url": f"{url}/token", "client_id": credential, "client_secret": file}
    standard = base64.b64encode(VALUES["file"].encode()).decode()
    (directory / "standard").write_text(f"whsec_{standard}")
    queues = {
        "headers": http(headers={"X-Team": file, "X-Key": env, "X-Other": credential}),
        "basic": http(auth={"type": "basic", "username": env, "password": file}),
        "bearer": http(auth={"type": "bearer", "token": credential}),
        "key": http(auth={"type": "api_key", "header": "X-Team", "key": env}),
        "query": http(auth={"type": "api_key", "query": "team", "key": file}),
        "plain": http(auth={"type": "hmac", "scheme": "plain", "secret": env}),
        "standard": http(auth={"type": "hmac", "secret": {"file": str(directory / "standard")}}),
        "form": http(auth={"type": "oauth2", **login, "form": {"x": env}}),
        "login": http(auth={"type": "oauth2", **login, "client_auth": "basic"}),
        "program": {
            "handler": {
                "type": "command",
                "command": ["sh", "-c", "env >&2; exit 65"],
                "environment": {"A": file, "B": env, "C": credential},
            }
        },
        "raises": {"handler": {"type": "python", "function": f"{LEAKING}:raises"}},
        "process": {
            "handler": {"type": "python", "function": f"{LEAKING}:raises", "mode": "process"}
        },
        "returns": {
            "handler": {"type": "python", "function": f"{LEAKING}:returns"},
            "history": "all",
        },
    }
    webhook = {"url": {"file": str(directory / "url")}, "headers": {"X-Team": credential}}
    (directory / "url").write_text(f"{url}/hooks/{VALUES['file']}")
    return {
        "defaults": {"max_retries": 0},
        "queues": queues,
        "notifications": {"pager": {"webhook": webhook}},
        "events": {"mode": "all", "directory": str(directory / "events")},
    }


@pytest.fixture(scope="module", params=["json", "console"])
def leaking(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("leaking")
    references = {"env": {"env": "HUSH_ENV"}, "credential": {"credential": "hush"}}
    references["file"] = {"file": str(directory / "hush_file")}
    (directory / "hush_file").write_text(f"{VALUES['file']}\n")
    (directory / "hush").write_text(f"{VALUES['credential']}\n")
    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadingHTTPServer(("127.0.0.1", 0), Repeating) as server,
    ):
        patch.setenv("HUSH_ENV", VALUES["env"])
        patch.setenv("CREDENTIALS_DIRECTORY", str(directory))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        config = configuration(url, directory, references)
        log = {"format": request.param, "level": "debug"}
        with serving_on(directory, {**config, "log": log}, rate_limit=0) as served:
            for queue in config["queues"]:
                served.push(queue, "one")

            def settled() -> None:
                for queue in config["queues"]:
                    ended = "delivered" if queue == "returns" else "dead"
                    assert served.host.books(queue).get(ended) == 1, queue

            eventually_sync(settled)
            eventually_sync(lambda: "notifications.not_sent" in log_of(served))
            yield served
        server.shutdown()


def log_of(served: Serving) -> str:
    return (served.host.directory / "daemon.log").read_text()


def check(text: str, where: object = "") -> None:
    pair = base64.b64encode(f"{VALUES['env']}:{VALUES['file']}".encode()).decode()
    login = base64.b64encode(f"{VALUES['credential']}:{VALUES['file']}".encode()).decode()
    for secret in (MARK, pair, login):
        assert secret not in text, (where, text[max(0, text.find(secret) - 200) :][:400])


def test_the_log_shows_none(leaking: Serving) -> None:
    check(log_of(leaking))
    assert "***" in log_of(leaking)


REPEATING = {
    *("headers", "program", "raises", "process"),
    *("basic", "bearer", "key", "query", "form", "login"),
}
"""Queues whose destinations repeat the secret that they were sent."""


def test_dead_letters_and_results_show_none(leaking: Serving) -> None:
    seen = set()
    for line in leaking.host.ok("dead", "ls", "--json").splitlines():
        letter = json.loads(line)
        seen.add(letter["queue"])
        for command in ("dead", "items"):
            for form in ((), ("--json",)):
                shown = leaking.host.command(command, "show", letter["id"], *form)
                check(shown.stdout.decode() + shown.stderr.decode(), letter["queue"])
        item = leaking.item(letter["id"])
        check(json.dumps(item))
        if letter["queue"] in REPEATING:
            assert "***" in json.dumps(item), item
    assert len(seen) == 12

    def kept() -> None:
        shown = leaking.host.ok("history", "returns", "--json")
        check(shown)
        assert "logged_in_with" in shown
        assert "***" in shown

    eventually_sync(kept)


def test_http_shows_none(leaking: Serving) -> None:
    described = leaking.http.get("/openapi.json").json()["paths"]
    plain = [path for path, operations in described.items() if "get" in operations]
    plain = [path for path in plain if "{" not in path and path != STREAM]
    queues = [f"/api/v2/queues/{name}" for name in ("headers", "basic", "form", "program")]
    pages = ["/queue-metrics", "/queue-metrics/events", "/queue-metrics/schedules", "/metrics"]
    for path in (*plain, *queues, *pages):
        answer = leaking.http.get(path)
        assert answer.status_code in (200, 422), (path, answer.text)
        check(answer.text, path)
    shown = leaking.http.get("/api/v2/configuration").json()["settings"]
    assert shown["queues"]["headers"]["handler"]["headers"]["X-Key"] == {"env": "HUSH_ENV"}
    assert shown["queues"]["bearer"]["handler"]["auth"]["token"] == {"credential": "hush"}


def test_the_event_stream_shows_none(leaking: Serving) -> None:
    with leaking.http.stream("GET", STREAM, headers={"Last-Event-ID": "0"}) as answer:
        for line in answer.iter_lines():
            check(line)
            if '"notice"' in line:
                break


@pytest.mark.parametrize(
    "op, fields",
    [
        ("queues.ls", {}),
        ("breakers.ls", {}),
        ("dead.find", {}),
        *(
            (op, {"queue": queue})
            for op in ("queues.show", "queues.stats")
            for queue in ("headers", "basic", "form", "program")
        ),
    ],
)
def test_the_socket_shows_none(leaking: Serving, op: str, fields: dict[str, Any]) -> None:
    with leaking.client() as client:
        check(json.dumps(client.control(op, **fields)))


def test_the_command_line_shows_none(leaking: Serving) -> None:
    named = ("crm", "made", "nightly", "hourly")
    commands = [
        one for one in COMMANDS if not one.endswith((*named, *(f"{n} --json" for n in named)))
    ]
    commands += ["config show --secrets", "queues show headers", "queues show headers --json"]
    for command in commands:
        done = leaking.host.command(*command.split())
        assert done.returncode == 0, (command, done.stderr.decode())
        check((done.stdout + done.stderr).decode(), command)
    assert "HUSH_ENV" in leaking.host.ok("config", "show")


def test_no_file_of_the_daemon_holds_one(leaking: Serving) -> None:
    def searched() -> None:
        files = [path for path in leaking.host.state_dir.rglob("*") if path.is_file()]
        assert len(files) > 3
        for path in files:
            check(path.read_bytes().decode("latin-1"), path)
        events = list((leaking.host.directory / "events").iterdir())
        text = "".join(read_events(path) for path in events)
        assert '"dead"' in text
        check(text)

    # The event log and its folder come with the first event.
    eventually_sync(searched, errors=(FileNotFoundError,))
