"""The URL of a Valkey or Redis, taken apart. ValueError where it makes no sense.

    redis://[user:password@]host:port/db     rediss://…  the same with TLS, verified
    unix:///path?db=0
    sentinel://host:port,host:port/service?ssl=true&sentinel_password=…

Behind a `?` stand options of the driver: `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, … Sentinels
have a login of their own (`sentinel_username`, `sentinel_password`), and are asked with the same
certificates as the servers behind them unless `sentinel_ssl_…` says otherwise. Unknown options are
refused here; otherwise they would be found only when the first connection is made.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")
FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
OF_TLS: Final = frozenset(
    {
        *FILES,
        *("ssl_ca_path", "ssl_password", "ssl_cert_reqs", "ssl_check_hostname"),
        *("ssl_min_version", "ssl_ciphers"),
    }
)
OF_ALL: Final = frozenset({"db", "client_name", "username", "password"})
OF_SENTINELS: Final = "sentinel_"
TRUE: Final = ("true", "1", "yes")


@dataclass(frozen=True, slots=True)
class ValkeyUrl:
    scheme: str
    addresses: tuple[tuple[str, int], ...]
    """Of all hosts; none where it is a path."""
    service: str
    """What Sentinels know the server by."""
    options: dict[str, Any]
    """The driver's, the login among them."""
    of_sentinels: dict[str, Any]

    @property
    def has_tls(self) -> bool:
        return self.scheme.startswith("rediss") or bool(self.options.get("ssl"))

    def check_files(self) -> None:
        """Raises OSError with the file's name if a certificate or key cannot be read: the driver's
        error does not name the file."""
        for options in (self.options, self.of_sentinels):
            for name in FILES:
                if name in options:
                    with Path(options[name]).open("rb"):
                        pass


def read_url(url: str) -> ValkeyUrl:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        *most, last = (f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"{parts.scheme}:// is not supported: use {', '.join(most)} or {last}")
    addresses = tuple(_addresses(url))
    query = dict(parse_qsl(parts.query))
    of_sentinels: dict[str, str] = {}
    service = ""
    if parts.scheme == "sentinel":
        service = parts.path.strip("/")
        for name in [name for name in query if name.startswith(OF_SENTINELS)]:
            of_sentinels[name.removeprefix(OF_SENTINELS)] = query.pop(name)
    has_tls = parts.scheme.startswith("rediss") or (
        parts.scheme == "sentinel" and query.pop("ssl", "").lower() in TRUE
    )
    options = _options(parts.scheme, query, has_tls=has_tls)
    asked = _options(parts.scheme, of_sentinels, has_tls=has_tls)
    if parts.scheme == "sentinel" and has_tls:
        options["ssl"] = asked["ssl"] = True
        asked = {name: options[name] for name in OF_TLS & options.keys()} | asked
    return ValkeyUrl(parts.scheme, addresses, service, _login(url) | options, asked)


def without_password(url: str) -> str:
    """For messages and logs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _options(scheme: str, query: dict[str, str], *, has_tls: bool) -> dict[str, Any]:
    """As the driver wants them."""
    found: dict[str, Any] = {}
    for name, value in query.items():
        if name not in OF_ALL and not (has_tls and name in OF_TLS):
            if name in OF_TLS:
                how = "ssl=true" if scheme == "sentinel" else "rediss"
                raise ValueError(f"{name} is of no use without TLS ({how})")
            raise ValueError(f"unknown option {name}")
        try:
            found[name] = URL_QUERY_ARGUMENT_PARSERS.get(name, str)(value)
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is nothing for the option {name}") from None
    return found


def _login(url: str) -> dict[str, str]:
    login, _, _ = urlsplit(url).netloc.rpartition("@")
    username, _, password = login.partition(":")
    found = {"username": unquote(username), "password": unquote(password)}
    return {key: value for key, value in found.items() if value}


def _addresses(url: str) -> list[tuple[str, int]]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("unix:// lacks the path of the socket: unix:///run/valkey.sock")
        return []
    default = SENTINEL_PORT if parts.scheme == "sentinel" else PORT
    found: list[tuple[str, int]] = []
    for address in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{address}")
        if not one.hostname:
            raise ValueError(f"{without_password(url)} names no host")
        found.append((one.hostname, one.port or default))
    if len(found) > 1 and parts.scheme != "sentinel":
        raise ValueError(f"{parts.scheme}:// takes one host: use sentinel:// for several Sentinels")
    if parts.scheme == "sentinel" and not parts.path.strip("/"):
        raise ValueError("sentinel:// lacks the name of the service: sentinel://host:26379/service")
    return found
