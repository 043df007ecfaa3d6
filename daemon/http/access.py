"""Authenticates HTTP requests and decides what they may do.

Without tokens the server listens only on loopback, and every local client is an admin; guard.py
refuses requests that a foreign web page makes a browser send (`Origin`, `Host`). With tokens every
read needs a token, and every change needs the admin token. If only an admin token is configured,
reads need it too; if only a read token is configured, changes are impossible.

Tokens are read from files at the start and again at SIGHUP, and compared in constant time. They are
sent as `Authorization: Bearer`; there are no cookies. It cannot tell two people with the same token
apart.
"""

import hmac
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import structlog
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from actors.config.settings import HttpSettings
from daemon.errors import ConfigError
from daemon.http.problems import Problem

log = structlog.get_logger()

TOKEN_CHARACTERS_MIN: Final = 16
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="forebay"'}


@dataclass(frozen=True, slots=True)
class Who:
    name: str
    """`local` without tokens, else `read` or `admin`."""
    may_write: bool
    sees_payloads: bool


class Access:
    def __init__(self, settings: HttpSettings) -> None:
        """Raises ConfigError if a token cannot be used."""
        self._settings = settings
        self._digests = load_tokens(settings)

    @property
    def is_open(self) -> bool:
        """Whether no token is needed."""
        return not self._digests

    def reload(self) -> None:
        """Reads the tokens again. If one cannot be used, none changes."""
        try:
            digests = load_tokens(self._settings)
        except ConfigError as problem:
            log.error("http.tokens_not_reloaded", error=str(problem), in_force="as before")
            return
        if digests != self._digests:
            self._digests = digests
            log.info("http.tokens_reloaded")

    def admin(self, authorization: str | None) -> Who:
        """The sender of this header, if it may make changes. Raises Problem 401 or 403."""
        scheme, _, token = (authorization or "").partition(" ")
        return check_writes(self.who(token.strip() if scheme.lower() == "bearer" else None))

    def who(self, token: str | None) -> Who:
        """The owner of the token. Raises Problem 401 if the token is missing or unknown."""
        if self.is_open:
            return Who("local", may_write=True, sees_payloads=True)
        digest = sha256((token or "").encode(errors="replace")).digest()
        # All are always compared, so that the time reveals nothing.
        found = [name for name, own in self._digests.items() if hmac.compare_digest(own, digest)]
        if token is None or not found:
            what = "a token is needed" if token is None else "this token is not known"
            text = f"{what}: send Authorization: Bearer TOKEN"
            raise Problem(401, text, headers=CHALLENGE)
        is_admin = "admin" in found
        return Who(
            "admin" if is_admin else "read",
            may_write=is_admin,
            sees_payloads=is_admin or self._settings.show_payloads,
        )


def load_tokens(settings: HttpSettings) -> dict[str, bytes]:
    """The digests of the tokens, by name."""
    files: Mapping[str, Path | None] = {
        "read": settings.read_token_file,
        "admin": settings.admin_token_file,
    }
    return {name: read_token(name, file) for name, file in files.items() if file is not None}


def read_token(name: str, file: Path) -> bytes:
    """A token is the file's first line."""
    key = f"http.{name}_token_file"
    try:
        mode = file.stat().st_mode
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not text"
        raise ConfigError(f"{key}: {file} cannot be read: {reason}") from problem
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(f"{key}: {file} is accessible to all users: chmod o= {file}")
    token = lines[0].strip() if lines else ""
    if len(token) < TOKEN_CHARACTERS_MIN:
        least = TOKEN_CHARACTERS_MIN
        raise ConfigError(f"{key}: {file}: a token has at least {least} characters")
    return sha256(token.encode()).digest()


def check_writes(who: Who) -> Who:
    if not who.may_write:
        raise Problem(403, "this token may read, and not change")
    return who


_bearer = HTTPBearer(
    scheme_name="token",
    description="The token of `http.read_token_file` or `http.admin_token_file`; on loopback "
    "without tokens none is needed.",
    auto_error=False,
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _reader(request: Request, credentials: Credentials) -> Who:
    access: Access = request.app.state.access
    who = access.who(credentials.credentials if credentials else None)
    request.state.who = who
    return who


async def _admin(who: Annotated[Who, Depends(_reader)]) -> Who:
    return check_writes(who)


Reader = Annotated[Who, Depends(_reader)]
"""A client that may read."""
Admin = Annotated[Who, Depends(_admin)]
"""A client that may make changes."""
