"""Who may do what: tokens, payloads, other people's pages, other names."""

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli.exits import Exit
from tests.daemon.cli.commands import Host
from tests.daemon.http.serving import Serving, problem, serving_on

READ = "reading-is-all-this-may"
ADMIN = "this-one-changes-things"
NEXT = "another-admin-from-now-on"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("guarded")
    files = token_files(directory)
    with serving_on(directory, None, **files) as served:
        yield served


def token_files(directory: Path) -> dict[str, str]:
    files = {"read_token_file": READ, "admin_token_file": ADMIN}
    for name, token in files.items():
        (directory / name).write_text(token + "\n")
        (directory / name).chmod(0o600)
    return {name: str(directory / name) for name in files}


def test_without_a_token_nothing_is_read(guarded: Serving) -> None:
    answer = guarded.http.get("/api/v2/queues")
    found = problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "token" in found["detail"]


@pytest.mark.parametrize("header", ["Bearer wrong", f"Basic {ADMIN}", f"Bearer {ADMIN}x", "Bearer"])
def test_wrong_token_is_refused(guarded: Serving, header: str) -> None:
    problem(
        guarded.http.get("/api/v2/queues", headers={"Authorization": header}), 401, "unauthorized"
    )


def test_read_token_reads_and_does_not_change(guarded: Serving) -> None:
    assert guarded.http.get("/api/v2/queues", headers=bearer(READ)).status_code == 200
    refused = guarded.http.post("/api/v2/queues", json={"queue": "q"}, headers=bearer(READ))
    problem(refused, 403, "forbidden")
    assert guarded.http.get("/api/v2/queues", headers=bearer(READ)).json()["queues"] == []


@pytest.mark.parametrize("token, status", [(None, 401), (READ, 403)])
def test_body_of_who_may_not_change_is_not_even_parsed(
    guarded: Serving, token: str | None, status: int
) -> None:
    """Megabytes of JSON of a stranger's would hold up the whole daemon."""
    headers = {"Content-Type": "application/json", **(bearer(token) if token else {})}
    for path in ("/api/queue-items/add", "/api/v2/queues", "/api/v2/dead-letters/retry"):
        answer = guarded.http.post(path, content=b"{ no JSON", headers=headers)
        assert answer.status_code == status, answer.text


def test_admin_token_changes_and_the_log_says_who(guarded: Serving) -> None:
    made = guarded.http.post("/api/v2/queues", json={"queue": "made"}, headers=bearer(ADMIN))
    assert made.status_code == 201
    guarded.http.delete("/api/v2/queues/made", headers=bearer(ADMIN))
    for method, path, status in (("POST", "", 201), ("DELETE", "/made", 204)):
        guarded.until_logged(
            "http.admin", who="admin", method=method, path=f"/api/v2/queues{path}", status=status
        )


def test_health_needs_no_token(guarded: Serving) -> None:
    assert guarded.http.get("/healthz").json() == {"status": "alive"}
    assert guarded.http.get("/readyz").json() == {"is_ready": True, "reasons": []}


def test_tokens_are_read_again_at_sighup(tmp_path: Path) -> None:
    with serving_on(tmp_path, None, **token_files(tmp_path)) as served:
        (tmp_path / "admin_token_file").write_text(NEXT)
        hang_up(served, "http.tokens_reloaded")
        problem(served.http.get("/api/v2/queues", headers=bearer(ADMIN)), 401, "unauthorized")
        assert served.http.get("/api/v2/queues", headers=bearer(NEXT)).status_code == 200

        (tmp_path / "admin_token_file").chmod(0o644)
        hang_up(served, "http.tokens_not_reloaded")
        assert served.http.get("/api/v2/queues", headers=bearer(NEXT)).status_code == 200


def hang_up(served: Serving, event: str) -> None:
    assert served.host.daemon is not None
    served.host.daemon.send_signal(signal.SIGHUP)
    served.until_logged(event)


@pytest.mark.parametrize(
    "content, mode, why",
    [
        ("long-enough-for-a-token", 0o644, "accessible to all users"),
        ("short", 0o600, "at least 16 characters"),
        ("", 0o600, "at least 16 characters"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_unusable_token_file_keeps_the_daemon_from_starting(
    tmp_path: Path, content: str | None, mode: int, why: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    http = {"listen": "127.0.0.1:0", "admin_token_file": str(file)}
    host = Host(tmp_path, {"http": http})
    for command in ("run", "config check"):
        done = host.command(*command.split())
        assert done.returncode == Exit.CONFIG
        assert why in done.stderr.decode().splitlines()[-1]
        assert "Traceback" not in done.stderr.decode()


# Other people's pages.


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_page_of_another_site_changes_nothing(serving: Serving, headers: dict[str, str]) -> None:
    answer = serving.http.post("/api/v2/queues", json={"queue": "foreign"}, headers=headers)
    problem(answer, 403, "cross-site")
    assert serving.http.get("/api/v2/queues", headers=headers).json()["queues"] == []


def test_taking_items_by_get_is_a_change(serving: Serving) -> None:
    taking = serving.http.get(
        "/api/queue-items/next?queue=q", headers={"Origin": "https://evil.example"}
    )
    problem(taking, 403, "cross-site")


def test_own_page_may_change(serving: Serving) -> None:
    headers = {"Origin": serving.address, "Sec-Fetch-Site": "same-origin"}
    made = serving.http.post("/api/v2/queues", json={"queue": "own"}, headers=headers)
    assert made.status_code == 201
    assert serving.http.delete("/api/v2/queues/own", headers=headers).status_code == 204


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8077", "", "a b", "127.0.0.1.evil"])
def test_other_name_is_refused(serving: Serving, host: str) -> None:
    problem(serving.http.get("/healthz", headers={"Host": host}), 421, "wrong-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8077"])
def test_names_of_loopback_are_known(serving: Serving, host: str) -> None:
    assert serving.http.get("/healthz", headers={"Host": host}).status_code == 200


def test_configured_name_is_known(tmp_path: Path) -> None:
    with serving_on(tmp_path, hosts=["queues.example"]) as served:
        headers = {"Host": "queues.example"}
        assert served.http.get("/healthz", headers=headers).status_code == 200


def test_every_answer_has_the_security_headers(serving: Serving) -> None:
    for path in ("/healthz", "/nothing", "/openapi.json"):
        headers = serving.http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "set-cookie" not in headers
        assert "server" not in headers


# The address.


def test_taken_address_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        host = Host(tmp_path)
        done = host.command("run", "--http", f"127.0.0.1:{port}")
    assert done.returncode == Exit.CONFIG
    text = done.stderr.decode().strip()
    assert re.fullmatch(rf"forebay: http.listen: 127.0.0.1:{port}: Address already in use", text)


def test_taken_default_address_is_a_warning(tmp_path: Path) -> None:
    with default_port_taken():
        host = Host(tmp_path)
        host.config.write_text("{}")
        host.start()
        assert host.stop() == 0
    events = {line["event"]: line for line in host.log()}
    assert "8077" in events["http.off"]["error"]
    assert events["daemon.ready"]["http"] is None
    assert not (host.state_dir / "http.address").exists()


def default_port_taken() -> socket.socket:
    """By this test, or by whatever has it already."""
    taken = socket.socket()
    try:
        taken.bind(("127.0.0.1", 8077))
        taken.listen()
    except OSError:
        pass
    return taken


def test_address_is_told_and_forgotten(tmp_path: Path) -> None:
    with serving_on(tmp_path) as served:
        served.until_logged("daemon.ready", http=served.address)
        assert served.host.stop() == 0
        assert not (served.host.state_dir / "http.address").exists()


def test_without_http_there_is_none(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.start()
    assert not (host.state_dir / "http.address").exists()
    assert host.stop() == 0


def test_payloads_setting_is_of_the_read_token_alone(tmp_path: Path) -> None:
    from actors.config.settings import HttpSettings
    from daemon.http.access import Access

    files = {name: Path(file) for name, file in token_files(tmp_path).items()}
    shy = Access(HttpSettings.model_validate(files))
    assert (shy.who(READ).sees_payloads, shy.who(ADMIN).sees_payloads) == (False, True)
    shown = Access(HttpSettings.model_validate({**files, "show_payloads": True}))
    assert shown.who(READ).sees_payloads
