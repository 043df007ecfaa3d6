"""The proxy of an http handler: where it is, and what it must be told.

An https destination is reached through a tunnel: the proxy is asked to CONNECT, and TLS is spoken
with the destination. A request to an http destination is sent to the proxy itself, with the whole
address as its target (daemon/handlers/http/request.py).
"""

from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from actors.config.http import HttpHandler, shown_url
from daemon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    authorization: bytes = b""
    """The value of Proxy-Authorization; empty: the header is not sent."""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """For messages."""
        return f"the proxy {self.address}"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"Proxy-Authorization", self.authorization)] if self.authorization else []


def proxy_of(queue: str, settings: HttpHandler, address: str) -> Proxy | None:
    """The proxy for requests to an address. Raises ConfigError if that of the environment cannot be
    used."""
    if settings.proxy is None:
        return None
    if settings.proxy != "env":
        secret = settings.proxy_password
        return read_proxy(settings.proxy, "" if secret is None else secret.value)
    name, url = proxy_of_environment(address)
    if not url:
        return None
    try:
        return read_proxy(url)
    except ValueError:
        text = (
            f"{name} is {shown_url(url)!r}: only http://[USER[:PASSWORD]@]HOST[:PORT] can be used"
        )
        raise ConfigError(f"queues.{queue}.handler.proxy: {text}") from None


def read_proxy(url: str, password: str = "") -> Proxy:
    """Raises ValueError if it is not the address of an http proxy."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("not an http proxy")
    authorization = b""
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{password or unquote(parts.password or '')}"
        authorization = b"Basic " + b64encode(user.encode())
    return Proxy(parts.hostname, parts.port or 80, authorization)


def proxy_of_environment(url: str) -> tuple[str, str]:
    """The name and value of the variable that is meant for this address; the value is empty if
    it is not set, or if NO_PROXY exempts the host."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    name = f"{parts.scheme.upper()}_PROXY"
    if proxy_bypass(parts.netloc):
        return name, ""
    return name, getproxies().get(parts.scheme, "")
