"""What all vendors have in common: a record of every item, tokens, limits, and faults on demand."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

Act = Literal["hang", "reset", "lose_answer", "malformed", "rate_limited", "unauthorized", "down"]
"""What to do with a request instead of answering it well. lose_answer: it is carried out, and the
connection ends without an answer."""
Verdict = Literal["accepted", "refused", "busy"]


class Request(NamedTuple):
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    def json(self) -> Any:
        """None if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


class Reply(NamedTuple):
    status: int
    body: Any = b""
    """Bytes, or anything else as JSON."""
    headers: Mapping[str, str] = {}

    def encoded(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)


class Hang:
    """No answer; the connection stays open."""


class Reset:
    """The connection ends at once."""


@dataclass(slots=True)
class Seen:
    """How often an item was accepted, refused for good, and refused for now."""

    accepted: int = 0
    refused: int = 0
    busy: int = 0


@dataclass(slots=True)
class Rate:
    """At most so many requests in a window of so many seconds."""

    requests: int
    seconds: float
    left: int = 0
    ends: float = 0
    """When the window ends, in seconds since the epoch."""

    def takes(self) -> bool:
        now = time.time()
        if now >= self.ends:
            self.left, self.ends = self.requests, now + self.seconds
        self.left -= 1
        return self.left >= 0

    @property
    def pause_s(self) -> int:
        """Whole seconds until the window ends."""
        return max(1, round(self.ends - time.time() + 0.5))


@dataclass(slots=True)
class Tokens:
    """The valid tokens, shared by a token endpoint and the vendors that ask for them."""

    lifetime_s: float = 3600
    issued: int = 0
    valid: dict[str, float] = field(default_factory=dict)
    """When each ends."""

    def issue(self) -> str:
        self.issued += 1
        token = f"token-{self.issued}"
        self.valid[token] = time.monotonic() + self.lifetime_s
        return token

    def expire_all(self) -> None:
        self.valid.clear()

    def accepts(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.valid.get(token, 0) > time.monotonic()


class Vendor(ABC):
    """One API. Tests may call everything here from their own thread."""

    prefix: ClassVar[str] = "/"
    """Of the paths that it serves."""
    items_max: ClassVar[int] = 1
    """Per request."""

    def __init__(self, tokens: Tokens | None = None) -> None:
        self._tokens = tokens
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}
        self._refused: set[str] = set()
        self._busy: dict[str, int] = {}
        self._acts: deque[Act] = deque()
        self.always: Act | None = None
        """What to do with every request."""
        self.rate: Rate | None = None
        self.requests = 0

    def refuse(self, keys: Iterable[str]) -> None:
        """These items are refused, always."""
        self._refused.update(keys)

    def be_busy(self, keys: Iterable[str], times: int = 1) -> None:
        """These items are refused for now, `times` times each."""
        self._busy.update(dict.fromkeys(keys, times))

    def will(self, *acts: Act) -> None:
        """What to do with the next requests, one after the other."""
        self._acts += acts

    def seen(self) -> dict[str, Seen]:
        """Every item that was sent, by its key."""
        with self._lock:
            return {
                key: Seen(one.accepted, one.refused, one.busy) for key, one in self._seen.items()
            }

    def answer(self, request: Request) -> Reply | Hang | Reset:
        with self._lock:
            self.requests += 1
            act = self._acts.popleft() if self._acts else self.always
            if act is None and self.rate is not None and not self.rate.takes():
                act = "rate_limited"
            authorization = request.headers.get("authorization", "")
            if act is None and self._tokens is not None and not self._tokens.accepts(authorization):
                act = "unauthorized"
            match act:
                case None:
                    return self.carry_out(request)
                case "lose_answer":
                    self.carry_out(request)
                    return Reset()
                case "hang":
                    return Hang()
                case "reset":
                    return Reset()
                case "malformed":
                    html = b"<html><body>Welcome to the portal</body></html>"
                    return Reply(200, html, {"Content-Type": "text/html"})
                case "rate_limited":
                    return self.rate_limited()
                case "unauthorized":
                    return self.unauthorized()
                case "down":
                    return Reply(503, b"Service Unavailable", {"Content-Type": "text/plain"})

    # What differs between vendors.

    @abstractmethod
    def carry_out(self, request: Request) -> Reply:
        """Takes or refuses the items of a request."""

    @abstractmethod
    def rate_limited(self) -> Reply: ...

    @abstractmethod
    def unauthorized(self) -> Reply: ...

    # For vendors.

    def verdict(self, key: str) -> Verdict:
        """Nothing is recorded yet."""
        if key in self._refused:
            return "refused"
        return "busy" if self._busy.get(key, 0) > 0 else "accepted"

    def record(self, key: str, verdict: Verdict) -> None:
        seen = self._seen.setdefault(key, Seen())
        match verdict:
            case "accepted":
                seen.accepted += 1
            case "refused":
                seen.refused += 1
            case "busy":
                seen.busy += 1
                self._busy[key] -= 1

    def judge(self, key: str) -> Verdict:
        """The verdict on an item, which is recorded."""
        found = self.verdict(key)
        self.record(key, found)
        return found

    @property
    def pause_s(self) -> int:
        """What Retry-After says."""
        return self.rate.pause_s if self.rate is not None else 1
