"""Masks secrets in what is shown: passwords in addresses, tokens, keys and the like.

Names decide, because nothing else tells a secret from other text: the name of a setting or header,
of a parameter in an address, of an option in a command (`--token=…`, `--token …`, `Authorization:
…`). The password in an address is always masked. Of a webhook's address only the host is shown. A
reference to a secret (`{env: CRM_KEY}`) holds none and is shown. Payloads are data and stay as they
are. Pure.

It is applied where something is prepared for display: settings (`Section.shown`), error texts
(`Failure`), rare events (actors/observers/event_log.py), log lines (daemon/process/logs.py).

It cannot recognise a secret that has no telling name: actors/model/secret_values.py masks those
whose value is known.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit, urlunsplit

MASK: Final = "***"
SECRET_CHARACTERS_MIN: Final = 4
"""Anything shorter would occur in ordinary words."""

_SECRET = re.compile(
    r"auth|cookie|credential|key|passw|pwd|secret|signature|token|^(pass|sig)$", re.IGNORECASE
)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
_NAMED = re.compile(r"([\w.-]+)(\s*[=:]\s*)(?:(?:bearer|basic)\s+)?[^\s\"']+", re.IGNORECASE)
_MASKED = re.compile(r"(^|[:=]\s?)\*\*\*")
_HARMLESS: Final = frozenset(
    {
        *("read_token_file", "admin_token_file", "key_file"),
        *("idempotency_key", "unique_key", "token_url", "client_auth"),
    }
)
"""Harmless names, although they contain a word for a secret."""
_REFERENCES: Final = frozenset({"file", "env", "credential"})
_NAMED_VALUES: Final = frozenset({"headers", "environment", "form"})
"""Settings whose keys the operator names: a header may be named `credential`."""


def masked(value: Any, name: str = "") -> Any:
    """The same tree with `***` in place of secrets."""
    if name == "payload":
        return value
    if isinstance(value, Mapping):
        if is_reference(value) and name not in _NAMED_VALUES:
            return dict(value)
        shown = {key: masked(child, str(key)) for key, child in value.items()}
        if name == "webhook" and isinstance(shown.get("url"), str):
            shown["url"] = host_alone(shown["url"])
        return shown
    if isinstance(value, list | tuple):
        if value and all(isinstance(child, str) for child in value) and not is_secret(name):
            return masked_words(value)
        return [masked(child, name) for child in value]
    if isinstance(value, str) and value:
        return MASK if is_secret(name) else masked_address(value)
    return value


def is_reference(value: Any) -> bool:
    """Whether this says where a secret is (actors/config/secrets.py)."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return False
    ((kind, name),) = value.items()
    return kind in _REFERENCES and isinstance(name, str)


def is_secret(name: str) -> bool:
    return name not in _HARMLESS and _SECRET.search(name) is not None


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command."""
    shown: list[str] = []
    before = ""
    for word in words:
        follows = before.startswith("-") and "=" not in before and is_secret(before)
        is_value = follows and not word.startswith("-")
        shown.append(MASK if is_value else masked_address(_NAMED.sub(_masked_named, word)))
        before = word
    return shown


def _masked_named(found: re.Match[str]) -> str:
    name, sign = found.groups()
    return f"{name}{sign}{MASK}" if is_secret(name) else found[0]


def masked_address(text: str) -> str:
    """The text, with the secrets in its addresses masked."""
    return _ADDRESS.sub(lambda found: _masked_one(found[0]), text) if "://" in text else text


def masked_query(text: str) -> str:
    """The query of an address, decoded and masked, for display."""
    pairs = parse_qsl(text, keep_blank_values=True)
    return "&".join(f"{name}={masked(value, name)}" for name, value in pairs)


def _masked_one(text: str) -> str:
    try:
        parts = urlsplit(text)
        if parts.password is not None:
            user, _, host = parts.netloc.rpartition("@")
            parts = parts._replace(netloc=f"{user.partition(':')[0]}:{MASK}@{host}")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return MASK
    if any(is_secret(name) for name, _ in pairs):
        shown = [(name, MASK if is_secret(name) else value) for name, value in pairs]
        parts = parts._replace(query=urlencode(shown, safe="*"))
    return urlunsplit(parts)


def named_secrets(url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """The secrets of a request. A destination may repeat them in its answer."""
    pairs = [pair.partition("=") for pair in urlsplit(url).query.split("&")]
    found = {text for name, _, text in pairs if is_secret(name)}
    found |= {unquote_plus(text) for text in found}
    found |= {text.split()[-1] for name, text in headers.items() if text and is_secret(name)}
    return tuple(sorted(text for text in found if len(text) >= SECRET_CHARACTERS_MIN))


def host_alone(url: str) -> str:
    """A webhook's address without its path: knowing the path is enough to post there."""
    parts = urlsplit(url)
    if parts.path in ("", "/") and not parts.query:
        return url
    return f"{parts.scheme}://{parts.netloc}/{MASK}"


def holds_mask(value: Any, name: str = "") -> bool:
    """Whether a value was read masked and is sent back like that."""
    if name == "payload":
        return bool(value == MASK)
    if isinstance(value, Mapping):
        return any(holds_mask(child, str(key)) for key, child in value.items())
    if isinstance(value, list | tuple):
        return any(holds_mask(child) for child in value)
    return isinstance(value, str) and _MASKED.search(value) is not None
