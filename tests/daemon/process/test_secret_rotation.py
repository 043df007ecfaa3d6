"""Secrets are read again at SIGHUP: a new value is used, a missing one changes nothing."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forebay import connect
from tests.daemon.cli.commands import Host, running
from tests.daemon.process.test_delivering import reconfigure
from tests.eventually import eventually_sync


class Keyed(ThreadingHTTPServer):
    """Notes the key of every request by its path; refuses what goes to /refused."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Noting)
        self.keys: dict[str, list[str]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def heard(self, path: str, *keys: str) -> None:
        eventually_sync(lambda: self.keys.get(path) == list(keys), f"{path}: {keys}")


class Noting(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Keyed)
        self.server.keys.setdefault(self.path, []).append(self.headers["X-Api-Key"])
        self.send_response(403 if self.path == "/refused" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Keyed]:
    with Keyed() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def private(path: Path, text: str) -> dict[str, str]:
    path.write_text(text)
    path.chmod(0o600)
    return {"file": str(path)}


def test_a_new_secret_is_used_by_queues_that_are_not_changed(tmp_path: Path, server: Keyed) -> None:
    file = tmp_path / "key"
    headers = {"X-Api-Key": private(file, "first-key\n")}
    queues = {
        "crm": {"handler": {"type": "http", "url": f"{server.url}/in", "headers": headers}},
        "bad": {"handler": {"type": "http", "url": f"{server.url}/refused", "headers": headers}},
    }
    told = {"url": private(tmp_path / "url", f"{server.url}/told"), "headers": headers}
    notifications = {"pager": {"webhook": told, "window": "1s", "rate": 1000}}
    host = Host(tmp_path, {"queues": queues, "notifications": notifications})
    with running(host), connect(host.socket) as client:
        client.push("crm", ["a"])
        client.push("bad", ["a"])
        server.heard("/in", "first-key")
        server.heard("/told", "first-key")

        file.write_text("second-key")
        reconfigure(host, "daemon.reloaded")
        client.push("crm", ["b"])
        client.push("bad", ["b"])
        server.heard("/in", "first-key", "second-key")
        server.heard("/told", "first-key", "second-key")

        file.unlink()
        reconfigure(host, "daemon.not_reloaded")
        line = host.log()[-1]
        assert line["in_force"] == "as before"
        assert line["error"].startswith("queues.crm.handler.headers.X-Api-Key: ")
        assert "cannot be read: No such file or directory" in line["error"]
        client.push("crm", ["c"])
        server.heard("/in", "first-key", "second-key", "second-key")
        assert host.stop() == 0


def test_without_its_secret_the_daemon_does_not_start(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    headers = {"X-Api-Key": {"file": str(missing)}}
    handler = {"type": "http", "url": "http://127.0.0.1:1/", "headers": headers}
    host = Host(tmp_path, {"queues": {"crm": {"handler": handler}}})
    for command in ("run", "config check"):
        done = host.command(*command.split())
        assert done.returncode == 3
        assert done.stderr.decode() == (
            f"forebay: queues.crm.handler.headers.X-Api-Key: {missing} cannot be read: "
            "No such file or directory\n"
        )
    private(missing, "two\nlines")
    done = host.command("run")
    assert done.returncode == 3
    assert b"the value of X-Api-Key has a line break in it" in done.stderr


def test_a_new_password_of_a_store_needs_a_restart(tmp_path: Path) -> None:
    """It is known from the settings alone: no store is opened for it."""
    from actors.config.settings import Settings
    from daemon.config.secrets import read_secrets
    from daemon.process.reload import restart_needed

    file = tmp_path / "password"
    url = "postgresql://u@h/d"
    found = []
    for text in ("first-password", "second-password"):
        cold = {"type": "postgres", "url": url, "password": private(file, text)}
        found.append(Settings.model_validate({"cold": cold}))
        read_secrets(found[-1])
    assert restart_needed(*found) == ["cold"]


def test_clients_cannot_have_secrets_sent_anywhere(tmp_path: Path) -> None:
    secret = private(tmp_path / "key", "a-key-of-the-host")
    defaults = {"handler": {"type": "http", "url": "http://h/", "headers": {"X-Api-Key": secret}}}
    host = Host(tmp_path, {"defaults": defaults})
    with running(host), connect(host.socket) as client:
        for handler in (
            {"type": "http", "url": "http://evil/", "headers": {"X-Api-Key": secret}},
            {"url": "http://evil/"},
        ):
            with pytest.raises(Exception, match="can only be given in the configuration file"):
                client.control("queues.add", queue="made", settings={"handler": handler})
        client.control("queues.add", queue="made", settings={"max_retries": 1})
        shown = client.control("queues.show", queue="made")
        assert shown["settings"]["handler"]["headers"] == {"X-Api-Key": secret}
        assert "a-key-of-the-host" not in json.dumps(shown)
