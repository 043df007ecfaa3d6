"""Notices posted by https, with authorities of the test's own: who is believed, and what the log
says of who is not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from actors.config.observers import NotificationSettings, WebhookSettings
from actors.observers import notifier as notification_sending
from actors.observers.notices import Notice
from actors.observers.notifier import Counts, NoticeSender, NotSent
from daemon.errors import ConfigError
from daemon.notify.ways import check_webhooks
from daemon.notify.webhook import HttpWebhook
from tests.daemon.handlers.http.certificates import Certificates, make_certificates
from tests.daemon.handlers.http.faulty import FaultyServer, answer, faulty_server

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the openssl command"
)

BODY = b"{}"
NOTICE = Notice("n-1", "pager", "dead", "crm", "client_error", "400", 3, (), 0, 0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def hook(server: FaultyServer, host: str = "127.0.0.1", **keys: Any) -> HttpWebhook:
    url = server.url(host, "/hooks/hush")
    return HttpWebhook(WebhookSettings.model_validate({"url": url, "timeout": "1m", **keys}))


async def logged(webhook: HttpWebhook, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the log says of a notice that is given up, at the first try."""
    monkeypatch.setattr(notification_sending, "PAUSES_S", ())
    counts = Counts()
    sender = NoticeSender(
        "pager", "webhook", lambda notice: webhook.post(notice.id, BODY), ignore, counts, 1
    )
    sender.offer(NOTICE)
    sender.close()
    with structlog.testing.capture_logs() as logs:
        await sender.run()
    assert (counts.sent, counts.failed) == (0, 1)
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("notifications.not_sent", "error")
    assert "hush" not in json.dumps(line)
    return str(line["error"])


def ignore(_notice: Notice, _why: str) -> None:
    """The events have it; the log is what is looked at here."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_authority_from_a_file_is_believed(certificates: Certificates, host: str) -> None:
    async with faulty_server(certificates.server_context("local")) as server:
        webhook = hook(server, host, ca_file=certificates.authority)
        await webhook.post("n-1", BODY)
        await webhook.post("n-2", BODY)
    assert [request.path for request in server.requests] == ["/hooks/hush"] * 2


@pytest.mark.parametrize(
    "certificate, host, is_known, why",
    [
        ("local", "127.0.0.1", False, "unable to get local issuer certificate"),
        ("other", "localhost", True, "certificate is not valid for 'localhost'"),
        ("other", "127.0.0.1", True, "certificate is not valid for '127.0.0.1'"),
        ("expired", "127.0.0.1", True, "certificate has expired"),
    ],
)
async def test_whoever_is_not_believed_gets_nothing_and_the_log_says_why(
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    certificate: str,
    host: str,
    is_known: bool,
    why: str,
) -> None:
    keys = {"ca_file": certificates.authority} if is_known else {}
    async with faulty_server(certificates.server_context(certificate)) as server:
        said = await logged(hook(server, host, **keys), monkeypatch)
    assert said.startswith(f"no TLS with {host}:{server.port}: the certificate is not accepted: ")
    assert why in said
    assert server.requests == []


async def test_a_redirect_is_not_followed(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificates.server_context("local")
    async with faulty_server(tls) as server, faulty_server(tls) as elsewhere:
        where = elsewhere.url(path="/hooks/hush")
        server.will(answer("307 Temporary Redirect", Location=where))
        said = await logged(hook(server, ca_file=certificates.authority), monkeypatch)
    assert f"redirects to https://127.0.0.1:{elsewhere.port}/…" in said
    assert (len(server.requests), elsewhere.connections) == (1, 0)


class TestFile:
    """What is wrong with it is said before anything starts."""

    def test_that_is_missing_or_holds_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "x.pem").write_text("not a certificate")
        for name, text in (("no.pem", "No such file"), ("x.pem", "cannot be used: ")):
            webhook = WebhookSettings(url="https://x/", ca_file=tmp_path / name)
            told = {"pager": NotificationSettings(webhook=webhook)}
            with pytest.raises(ConfigError, match=text) as caught:
                check_webhooks(told)
            assert str(caught.value).startswith("notifications.pager.webhook.ca_file: ")

    def test_means_nothing_without_https(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="ca_file needs an https url"):
            WebhookSettings(url="http://x/", ca_file=tmp_path / "x.pem")

    async def test_that_is_gone_since_is_told_when_it_is_needed(self, tmp_path: Path) -> None:
        webhook = HttpWebhook(WebhookSettings(url="https://x/", ca_file=tmp_path / "no.pem"))
        with pytest.raises(NotSent, match="No such file") as caught:
            await webhook.post("n-1", BODY)
        assert not caught.value.is_final
