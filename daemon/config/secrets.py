"""Reads the secrets that settings refer to: files, environment variables, systemd's credentials.

Called at the start, at a reload, and when a handler is opened. Every value that was read is known
to `SECRET_VALUES` from then on, so that no log line or error shows it.
"""

import os
import stat
from pathlib import Path
from typing import Final

import structlog

from actors.config.secrets import Secret, secrets_in
from actors.model.secret_values import SECRET_VALUES
from daemon.errors import ConfigError

log = structlog.get_logger()

SECRET_BYTES_MAX: Final = 64 * 1024

_warned: set[Path] = set()
"""Files that the log has warned about."""


class NoSecret(Exception):
    """The text says why a secret cannot be read. It never holds a part of it."""


def read_secrets(settings: object, key: str = "") -> None:
    """Reads all secrets in `settings` that were not read yet. Raises ConfigError, with a line per
    reference that cannot be used; `key` is where the settings are."""
    found: dict[tuple[str, str], str] = {}
    problems: dict[tuple[str, str], str] = {}
    for where, secret in secrets_in(settings, key):
        source = secret.kind, secret.name
        # Queues that share the default handler share its problem: one line.
        if secret.is_read or source in problems:
            continue
        try:
            value = found[source] if source in found else _read(secret)
        except NoSecret as problem:
            problems[source] = f"{where}: {problem}"
            continue
        found[source] = value
        secret.keep(value)
        SECRET_VALUES.add(value)
    if problems:
        raise ConfigError(*problems.values())


def _read(secret: Secret) -> str:
    if secret.env is not None:
        text = os.environ.get(secret.env)
        if text is None:
            raise NoSecret(f"the environment variable {secret.env} is not set")
        what = f"the environment variable {secret.env}"
    else:
        path = _path(secret)
        text, what = _read_file(path, warns=secret.file is not None), str(path)
    if text.endswith("\n"):
        text = text[:-1].removesuffix("\r")
    if not text:
        raise NoSecret(f"{what} is empty")
    return text


def _path(secret: Secret) -> Path:
    if secret.file is not None:
        return secret.file
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise NoSecret(
            f"the credential {secret.credential} does not exist: CREDENTIALS_DIRECTORY is not set, "
            "so systemd passes none (LoadCredential=)"
        )
    return Path(directory, secret.name)


def _read_file(path: Path, *, warns: bool) -> str:
    try:
        # A pipe must not block the daemon.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise NoSecret(f"{path} is not a regular file")
            data = os.read(fd, SECRET_BYTES_MAX + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise NoSecret(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > SECRET_BYTES_MAX:
        raise NoSecret(f"{path} is longer than {SECRET_BYTES_MAX // 1024}Ki, too long for a secret")
    if warns and mode & stat.S_IROTH and path not in _warned:
        _warned.add(path)
        log.warning("config.secret_readable_by_all", file=str(path), hint=f"chmod o= {path}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NoSecret(f"{path} is not UTF-8 text") from None
