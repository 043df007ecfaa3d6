"""`forebay try`: the request of an item, shown and sent, with a daemon and without."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync

GOOD = b'{"email": "ann@example.org"}'


class _Crm(BaseHTTPRequestHandler):
    """Refuses addresses at example.com."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = b"no customer of ours" if b"example.com" in body else b"thank you"
        self.send_response(422 if b"example.com" in body else 200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Crm)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    crm = {
        "type": "http",
        "url": f"http://127.0.0.1:{server.server_address[1]}/contacts",
        "headers": {"X-Api-Key": "hush-hush"},
        "request": {
            "query": {"customer": "{{ key }}"},
            "item": {"Email": "{{ payload.email }}"},
            "body": {"records": "{{ items }}"},
        },
    }
    queues = {
        "crm": {"handler": crm},
        "mail": {"handler": {"type": "pull"}},
        "unrenderable": {"handler": crm},
        "refused": {"handler": crm},
    }
    with running(Host(tmp_path_factory.mktemp("try"), {"queues": queues})) as host:
        yield host
    server.shutdown()
    server.server_close()


def test_the_request_is_shown(host: Host) -> None:
    shown = host.ok("try", "crm", "--item", "-", "--key", "a b", stdin=GOOD)
    assert shown.startswith("POST http://127.0.0.1:")
    assert "/contacts?customer=a+b\n" in shown
    assert "X-Api-Key: ***\n" in shown
    assert "Idempotency-Key: ***" not in shown
    assert '\n{"records":[{"Email":"ann@example.org"}]}\n' in shown
    assert shown.endswith("ready to be sent (--send sends it)\n")


def test_sent_it_says_what_came_back(host: Host) -> None:
    sent = host.ok("try", "crm", "--item", "-", "--send", stdin=GOOD)
    assert "\n200 thank you\n" in sent
    assert sent.endswith("\ndelivered\n")
    refused = host.command("try", "crm", "--item", "-", "--send", stdin=b'{"email":"@example.com"}')
    assert refused.returncode == 5
    assert b"422 no customer of ours\n" in refused.stdout
    assert refused.stdout.decode().splitlines()[-1].startswith("refused: 422 from http://127")


def test_a_dead_letter_can_be_tried_and_stays(host: Host) -> None:
    host.ok("push", "unrenderable", stdin=b'{"mail": 1}\n')
    host.until_books({"accepted": 1, "dead": 1}, "unrenderable")
    listed = ("dead", "ls", "--json", "--queue", "unrenderable")
    (letter,) = map(json.loads, host.ok(*listed).splitlines())
    done = host.command("try", "unrenderable", "--from-dead", letter["id"], "--json")
    assert done.returncode == 5
    assert json.loads(done.stdout) == {
        "requests": [],
        "outcome": "refused",
        "error": "unrenderable: item.Email: payload.email is missing",
    }
    assert len(host.ok(*listed).splitlines()) == 1


def test_a_dead_letter_is_sent_under_its_id(host: Host) -> None:
    host.ok("push", "refused", stdin=b'{"email": "bob@example.com"}\n')

    def refused() -> str:
        listed = host.ok("dead", "ls", "--json", "--error", "422")
        assert listed
        return listed

    letter_id = json.loads(eventually_sync(refused))["id"]
    shown = host.ok("try", "refused", "--from-dead", letter_id)
    assert f"Idempotency-Key: {letter_id}\n" in shown


def test_without_a_daemon_a_file_is_enough(host: Host, tmp_path: Path) -> None:
    alone = Host(tmp_path)
    given = ["try", "crm", "--item", "-", "--config", str(host.config)]
    assert "ready to be sent" in alone.ok(*given, stdin=GOOD)
    assert alone.ok(*given, "--send", stdin=GOOD).endswith("\ndelivered\n")
    unknown = alone.command("try", "nope", "--item", "-", "--config", str(host.config), stdin=GOOD)
    assert unknown.returncode == 3
    assert (
        b"the configuration has no queue nope; its queues: crm, mail, unrenderable, refused"
        in unknown.stderr
    )


def test_warnings_do_not_mix_with_the_result(host: Host, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("hush-hush")
    secret.chmod(0o644)
    auth = json.dumps({"type": "bearer", "token": {"file": str(secret)}})
    done = Host(tmp_path).command(
        *("try", "crm", "--item", "-", "--config", str(host.config), "--json"),
        *("--set", f"queues.crm.handler.auth={auth}"),
        stdin=GOOD,
    )
    assert b"config.secret_readable_by_all" in done.stderr
    assert json.loads(done.stdout)["outcome"] == "ready"


@pytest.mark.parametrize(
    "args, code, says",
    [
        (["crm"], 2, "give --item FILE or --from-dead ID"),
        (["crm", "--item", "/nowhere"], 2, "--item: /nowhere: No such file"),
        (["crm", "--item", "-", "--from-dead", "x"], 2, "give --item FILE or --from-dead ID"),
        (
            ["crm", "--from-dead", "0198c2f4-0000-7000-8000-000000000000-1"],
            4,
            "there is no dead letter",
        ),
        (["crm", "--from-dead", "x", "--config", "f"], 2, "--from-dead needs a daemon"),
        (["mail", "--item", "-"], 5, "mail has no handler to try"),
        (["crn", "--item", "-"], 5, "its items wait for consumers, or the name is wrong"),
    ],
)
def test_mistakes_are_explained(host: Host, args: list[str], code: int, says: str) -> None:
    done = host.command("try", *args, stdin=GOOD)
    assert done.returncode == code, done
    assert says in " ".join(done.stderr.decode().split())
