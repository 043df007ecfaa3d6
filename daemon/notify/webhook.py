"""Posts notices to a webhook, with the http handlers' client.

Each notice uses a new connection: notices are rare. Answers mean the same as for a handler
(docs/handlers.md): 2xx is success; 408, 425, 429 and 5xx are retried; anything else is final. Error
texts name only the host, because a webhook's path is often its password. An answer that repeats
the path ("Cannot POST /hooks/…", or a redirect) is not quoted.

With https the server must present a valid certificate for its host, signed by an authority of the
system or of `ca_file`; otherwise nothing is sent, not even the path. Redirects are not followed:
they are a final failure.

On cancel it closes the connection; whether the server took the notice is unknown then.
"""

import re
import ssl
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import trio

from actors.config.http import header_texts
from actors.config.observers import WebhookSettings
from actors.config.secrets import text_of
from actors.model.masking import SECRET_CHARACTERS_MIN
from actors.model.units import format_duration
from actors.observers.notifier import NotSent
from daemon.errors import ConfigError
from daemon.handlers.http.answer import Answer, failure_of, secrets_of, verdict, without_secrets
from daemon.handlers.http.connection import ConnectionFailed, HttpConnection
from daemon.handlers.http.handler import trust
from daemon.handlers.http.request import Header, Target, target_of

ANSWER_BYTES_MAX: Final = 64 * 1024
_HOST = re.compile(r"https?://[^/?#@\s]+(?=[/?#]|$)", re.IGNORECASE)


class HttpWebhook:
    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._target = target_of(text_of(settings.url))
        self._tls: ssl.SSLContext | None = None

    async def post(self, notice_id: str, body: bytes) -> None:
        target = self._target
        if target.is_tls and self._tls is None:
            # Reads the system's certificates when they are first needed.
            self._tls = await trio.to_thread.run_sync(self._make_tls)
        connection = HttpConnection(target, self._tls)
        try:
            with trio.fail_after(self._settings.timeout):
                await connection.connect()
                answer = await connection.exchange(
                    "POST", target.path, self._headers(notice_id, body), body, ANSWER_BYTES_MAX
                )
        except trio.TooSlowError:
            patience = format_duration(self._settings.timeout)
            doing = f"{target.address}: {connection.doing}"
            raise NotSent(f"{doing} took longer than {patience}") from None
        except ConnectionFailed as problem:
            raise NotSent(str(problem)) from problem
        finally:
            connection.close()
        if verdict(answer.status) != "delivered":
            answer = without_secrets(answer, secrets_of("", self._settings.headers))
            failure = failure_of(quotable(answer, target), target.destination, time.time())
            pause_s = failure.retry_after_s or 0.0
            raise NotSent(failure.text, is_final=failure.is_permanent, pause_s=pause_s)

    def _make_tls(self) -> ssl.SSLContext:
        try:
            return make_tls("ca_file", self._settings.ca_file)
        except ConfigError as problem:
            # It was readable at the start, and is not any more.
            raise NotSent(str(problem)) from problem

    def _headers(self, notice_id: str, body: bytes) -> list[Header]:
        own = {
            "Host": self._target.host_header.decode(),
            "User-Agent": f"forebay/{version('forebayd')}",
            "Content-Type": "application/json",
        }
        configured = header_texts(self._settings.headers)
        given = {name.lower() for name in configured}
        chosen = {name: value for name, value in own.items() if name.lower() not in given}
        fixed = {
            "Idempotency-Key": notice_id,
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        return [
            (name.encode(), value.encode("latin-1"))
            for name, value in (chosen | configured | fixed).items()
        ]


def quotable(answer: Answer, target: Target) -> Answer:
    """The answer without mentions of the path that was posted to."""
    headers = dict(answer.headers)
    if "location" in headers:
        host = _HOST.match(headers["location"])
        headers["location"] = f"{host[0]}/…" if host else "another path"
    path = target.path.decode()
    secrets = {part for text in (path, unquote(path)) for part in re.split("[/?&=]", text)}
    said = answer.body.decode(errors="replace")
    repeats = any(len(each) >= SECRET_CHARACTERS_MIN and each in said for each in secrets)
    return replace(answer, headers=headers, body=b"" if repeats else answer.body)


def make_tls(key: str, ca_file: Path | None) -> ssl.SSLContext:
    """The TLS settings. Raises ConfigError, which names the key, if the file cannot be used."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        trust(context, key, ca_file)
    return context
