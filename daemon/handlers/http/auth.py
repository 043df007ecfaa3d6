"""How requests prove who sends them: `auth` of the http handler.

One object per handler, shared by its workers. The sender asks it for header lines right before it
sends a request, since a signature needs the body and the time, and a token may have expired:

    lines = await auth.lines(key, body, time.time())     # DeliveryFailed: the token endpoint failed
    answer = ...                                          # head + lines + CRLF + body
    if answer.status == 401 and await auth.renewed(lines):
        ...                                               # once more, with new lines

Fixed credentials cost nothing per request. A token (`OAuth2`) is fetched when it is first needed
and before it expires. One task fetches at a time; the others use the current token while it is
valid, and wait otherwise. A token endpoint that fails is a failure of the destination: the items
are tried again, and the breaker counts it.

Tokens are kept in memory only. On cancel a fetch is given up, and the next request begins another.
"""

import base64
import binascii
import hmac
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from math import inf, isfinite
from typing import Any, Final, Protocol, assert_never
from urllib.parse import quote, quote_plus, urlencode, urlsplit

import msgspec
import structlog
import trio

from actors.config.auth import ApiKeyAuth, BasicAuth, BearerAuth, HmacAuth, OAuth2Auth
from actors.config.http import HttpHandler, check_header_value
from actors.config.secrets import Secret, text_of
from actors.model.masking import SECRET_CHARACTERS_MIN
from actors.model.outcomes import Failure
from actors.model.secret_values import SECRET_VALUES
from actors.model.units import format_duration
from actors.ports.handler import DeliveryFailed
from daemon.errors import ConfigError
from daemon.handlers.http import answer as answers
from daemon.handlers.http.connection import ConnectionFailed, HttpConnection
from daemon.handlers.http.proxy import proxy_of
from daemon.handlers.http.request import Header, Target, target_of

log = structlog.get_logger()

ANSWER_BYTES_MAX: Final = 64 * 1024
TOKEN_S_MAX: Final = 10.0
"""A token is fetched within this, and within half of the handler's timeout."""
RENEWED_AT: Final = 0.8
RENEWED_BEFORE_S: Final = 60.0
"""A token is renewed at 80 % of its life, or a minute before its end if that is earlier."""
FRESH_S: Final = 1.0
"""A token that is refused so soon is not renewed: another one would be refused as well."""
AGAIN_S: Final = 10.0
"""After a failed renewal, while the current token is still valid."""
WHSEC: Final = "whsec_"


class Auth(Protocol):
    @property
    def query(self) -> str:
        """A parameter for the query of every request, percent-encoded (`name=value`); empty: none.
        It is a secret."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """What a destination must not be quoted with. Changes when a token is renewed."""

    async def lines(self, key: str, body: bytes, now_s: float) -> bytes:
        """The header lines for a request, each ended with CRLF. `key`: its idempotency key; `body`:
        as it is sent; `now_s`: the time of day.

        Raises DeliveryFailed if no token can be fetched.
        """

    async def renewed(self, used: bytes) -> bool:
        """After a 401 to a request with these lines: whether other lines are there now, so that one
        more try makes sense. Raises DeliveryFailed if a token was to be fetched and was not."""


def open_auth(
    queue: str,
    settings: HttpHandler,
    tls: ssl.SSLContext | None,
    clock: Callable[[], float] = trio.current_time,
) -> Auth:
    """Raises ConfigError, with the key, if a secret cannot be used. `tls`: the handler's. `clock`:
    in seconds; tokens expire by it."""
    try:
        match settings.auth:
            case None:
                return Fixed()
            case BasicAuth() as basic:
                return _basic(basic)
            case BearerAuth() as bearer:
                return _bearer(bearer)
            case ApiKeyAuth() as key:
                return _api_key(key)
            case HmacAuth(scheme="plain") as chosen:
                return PlainSignature(chosen)
            case HmacAuth() as chosen:
                return StandardWebhooks(chosen)
            case OAuth2Auth() as oauth2:
                if tls is None and oauth2.token_url.startswith("https:"):
                    tls = ssl.create_default_context()
                target = target_of(oauth2.token_url, proxy_of(queue, settings, oauth2.token_url))
                return OAuth2(oauth2, target, tls, min(TOKEN_S_MAX, settings.timeout / 2), clock)
            case _:
                assert_never(settings.auth)
    except ValueError as problem:
        raise ConfigError(f"queues.{queue}.handler.auth.{problem}") from problem


class Fixed:
    """The same lines, or the same parameter, for every request; none by default."""

    def __init__(self, lines: bytes = b"", query: str = "", secrets: Iterable[str] = ()) -> None:
        self._lines = lines
        self.query = query
        self.secrets = _masked_later(secrets)

    async def lines(self, key: str, body: bytes, now_s: float) -> bytes:
        return self._lines

    async def renewed(self, used: bytes) -> bool:
        return False


def _basic(settings: BasicAuth) -> Fixed:
    username, password = text_of(settings.username), settings.password.value
    if ":" in username:
        raise ValueError("username: a user name here has no colon")
    pair = _base64(f"{username}:{password}".encode())
    return Fixed(_line("Authorization", f"Basic {pair}"), secrets=(pair, password))


def _bearer(settings: BearerAuth) -> Fixed:
    token = settings.token.value
    _check("token", token)
    return Fixed(_line("Authorization", f"Bearer {token}"), secrets=(token,))


def _api_key(settings: ApiKeyAuth) -> Fixed:
    key = settings.key.value
    if settings.header is None:
        query = f"{quote(settings.query or '', safe='')}={quote(key, safe='')}"
        return Fixed(query=query, secrets=(key, quote(key, safe="")))
    _check("key", f"{settings.prefix}{key}")
    return Fixed(_line(settings.header, f"{settings.prefix}{key}"), secrets=(key,))


class StandardWebhooks:
    """https://www.standardwebhooks.com: the receiver can tell who sent a request, and when.

    The id is the idempotency key, so that a repeated request has the same one.
    """

    query = ""

    def __init__(self, settings: HmacAuth) -> None:
        text = settings.secret.value
        try:
            self._secret = base64.b64decode(text.removeprefix(WHSEC), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(
                "secret: the secret is not base64, as standard-webhooks has it"
            ) from None
        self.secrets = _masked_later((text, text.removeprefix(WHSEC)))

    async def lines(self, key: str, body: bytes, now_s: float) -> bytes:
        signed = b"%b.%d.%b" % (key.encode(), now_s, body)
        signature = _base64(hmac.digest(self._secret, signed, sha256))
        return b"webhook-id: %b\r\nwebhook-timestamp: %d\r\nwebhook-signature: v1,%b\r\n" % (
            key.encode(),
            now_s,
            signature.encode(),
        )

    async def renewed(self, used: bytes) -> bool:
        return False


class PlainSignature:
    """The HMAC-SHA256 of the body in one header."""

    query = ""

    def __init__(self, settings: HmacAuth) -> None:
        self._secret = settings.secret.value.encode()
        self._start = f"{settings.header}: {settings.prefix}".encode()
        self._is_hex = settings.encoding == "hex"
        self.secrets = _masked_later((settings.secret.value,))

    async def lines(self, key: str, body: bytes, now_s: float) -> bytes:
        digest = hmac.digest(self._secret, body, sha256)
        text = digest.hex() if self._is_hex else _base64(digest)
        return b"%b%b\r\n" % (self._start, text.encode())

    async def renewed(self, used: bytes) -> bool:
        return False


@dataclass(slots=True, eq=False)
class Token:
    text: str
    lines: bytes
    fetched_at: float
    renew_at: float
    expires_at: float


class OAuth2:
    query = ""

    def __init__(
        self,
        settings: OAuth2Auth,
        target: Target,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._target = target
        self._tls = tls if target.is_tls else None
        self._timeout_s = timeout_s
        parts = urlsplit(settings.token_url)
        self._where = f"token endpoint {parts.scheme}://{parts.netloc}{parts.path}"
        self._headers, self._body, own = _token_request(settings, target.host_header)
        if target.asked_proxy is not None:
            self._headers += target.asked_proxy.headers
        self._own = _masked_later(own)
        """The secrets of the token request."""
        self.secrets = self._own
        self._token: Token | None = None
        self._problem: Failure | None = None
        """Of the latest fetch; None: it succeeded."""
        self._fetches = 0
        self._fetching = trio.Lock()

    async def lines(self, key: str, body: bytes, now_s: float) -> bytes:
        token = self._token
        if token is None or self._clock() >= token.renew_at:
            token = await self._renew(token, is_usable=True)
        return token.lines

    async def renewed(self, used: bytes) -> bool:
        token = self._token
        if token is not None and token.lines == used:
            if self._clock() - token.fetched_at < FRESH_S:
                return False
            token = await self._renew(token, is_usable=False)
        return token is not None and token.lines != used

    async def _renew(self, old: Token | None, *, is_usable: bool) -> Token:
        """The next token; the old one while that cannot be fetched, if it is still usable."""
        if old is not None and is_usable and self._is_valid(old) and self._fetching.locked():
            return old
        seen = self._fetches
        async with self._fetching:
            # Those who waited share what came of it, also if that is a failure.
            if self._fetches == seen:
                await self._fetch()
            token, problem = self._token, self._problem
        if problem is None:
            assert token is not None
            return token
        if old is not None and is_usable and self._is_valid(old):
            old.renew_at = self._clock() + AGAIN_S
            log.warning("http.token_not_renewed", error=problem.text, in_force="the current token")
            return old
        raise DeliveryFailed(problem)

    def _is_valid(self, token: Token) -> bool:
        return self._clock() < token.expires_at

    async def _fetch(self) -> None:
        began = self._clock()
        found = await self._ask()
        self._fetches += 1
        if isinstance(found, Failure):
            self._problem = found
            return
        text, life_s = found
        before = () if self._token is None else (self._token.text,)
        renew_s = min(RENEWED_AT * life_s, max(life_s - RENEWED_BEFORE_S, life_s / 2))
        lines = _line("Authorization", f"Bearer {text}")
        self._token = Token(text, lines, began, began + renew_s, began + life_s)
        self._problem = None
        SECRET_VALUES.add_token(text)
        # A request that is under way may have the token before.
        self.secrets = self._own + tuple(one.encode() for one in (text, *before))

    async def _ask(self) -> tuple[str, float] | Failure:
        """A token and its life in seconds, or why the endpoint gave none."""
        connection = HttpConnection(self._target, self._tls)
        try:
            with trio.fail_after(self._timeout_s):
                await connection.connect()
                answer = await connection.exchange(
                    "POST",
                    self._target.form(self._target.path),
                    self._headers,
                    self._body,
                    ANSWER_BYTES_MAX,
                )
        except trio.TooSlowError:
            patience = format_duration(self._timeout_s)
            return Failure(f"{self._where}: {connection.doing} took longer than {patience}")
        except ConnectionFailed as problem:
            return Failure(f"{self._where}: {problem}")
        finally:
            connection.close()
        answer = answers.without_secrets(answer, self._own)
        content = _object(answer.body)
        if answers.verdict(answer.status) != "delivered":
            pause_s = answers.retry_after_s(answer.headers.get("retry-after"), time.time())
            text = f"{self._where} answered {answer.status}: {_reason(answer, content)}"
            return Failure(text, retry_after_s=pause_s)
        token = content.get("access_token")
        if not isinstance(token, str) or not token or not token.isascii():
            return Failure(f"{self._where} answered {answer.status} without an access_token")
        if not token.isprintable() or " " in token:
            return Failure(f"{self._where} answered with a token that no header can hold")
        return token, _life_s(content.get("expires_in"))


def _token_request(settings: OAuth2Auth, host: bytes) -> tuple[list[Header], bytes, list[str]]:
    """The headers and the body of a token request, and the secrets in them."""
    client_id, secret = text_of(settings.client_id), settings.client_secret.value
    form = {"grant_type": "client_credentials"}
    form |= {name: text_of(value) for name, value in settings.form.items()}
    form |= {name: getattr(settings, name) for name in ("scope", "audience")}
    headers: list[Header] = [
        (b"Host", host),
        (b"User-Agent", f"forebay/{version('forebayd')}".encode()),
        (b"Accept", b"application/json"),
        (b"Accept-Encoding", b"identity"),
        (b"Content-Type", b"application/x-www-form-urlencoded"),
        (b"Connection", b"close"),
    ]
    own = [secret, quote_plus(secret)]
    own += [value.value for value in settings.form.values() if isinstance(value, Secret)]
    if settings.client_auth == "basic":
        # RFC 6749, section 2.3.1: both are encoded as in a form before they are joined.
        pair = _base64(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode())
        headers.append((b"Authorization", f"Basic {pair}".encode()))
        own.append(pair)
    else:
        form |= {"client_id": client_id, "client_secret": secret}
    body = urlencode({name: value for name, value in form.items() if value}).encode()
    return headers, body, own


def _life_s(expires_in: Any) -> float:
    """Some servers write the number as a text, some leave it out: then the token is used until it
    is refused."""
    try:
        life_s = float(expires_in)
    except (TypeError, ValueError):
        return inf
    return life_s if isfinite(life_s) and life_s > 0 else inf


def _object(body: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _reason(answer: answers.Answer, content: dict[str, Any]) -> str:
    """Why the endpoint gave no token: an OAuth error (RFC 6749, section 5.2), or any text."""
    if 300 <= answer.status < 400:
        return "it redirects, which forebay does not follow: correct token_url"
    said = [content[name] for name in ("error", "error_description") if name in content]
    texts = [" ".join(text.split()) for text in said if isinstance(text, str)]
    text = SECRET_VALUES.masked(": ".join(texts))[: answers.TEXT_CHARACTERS_MAX]
    return text or answers.text_of(answer) or "it gives no reason"


def _masked_later(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """Secrets that are masked in answers, from now on also in all other texts."""
    found = [secret for secret in secrets if len(secret) >= SECRET_CHARACTERS_MIN]
    for secret in found:
        SECRET_VALUES.add(secret)
    return tuple(secret.encode() for secret in sorted(set(found), key=len, reverse=True))


def _line(name: str, value: str) -> bytes:
    return f"{name}: {value}\r\n".encode("latin-1")


def _check(key: str, value: str) -> None:
    try:
        check_header_value("the header", value)
    except ValueError:
        raise ValueError(f"{key}: the secret has characters that no header may have") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
