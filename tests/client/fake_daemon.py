"""A daemon and a clock of the test's own, for tests of when the client tries again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay import exchange, receipts, wire
from forebay.client import Client
from forebay.errors import Code, Refused
from forebay.limits import FRAME_HEAD_BYTES
from forebay.link import Frame, Lost
from forebay.wire import Buffer, Kind, Outcome


class FakeDaemon:
    """Time passes only while the client waits. `on_push` makes the answer to each push, `on_stage`
    to each staged run, `on_ask` to each CONTROL and FETCH; None is no answer."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.is_up = True
        self.connects: list[float] = []
        self.pushes: list[tuple[float, bytes]] = []
        self.on_push: Callable[[int], bytes | None] = lambda sequence: ack(sequence)
        self.stages: list[bytes] = []
        """Bodies."""
        self.on_stage: Callable[[int], bytes | None] = lambda sequence: ack(sequence)
        self.asked: list[dict[str, Any]] = []
        self.on_ask: Callable[[int], bytes | None] = lambda sequence: None
        self.on_connect: Callable[[], None] = lambda: None
        self.report: dict[str, Any] = {}
        self.link: FakeLink | None = None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def connect(self, path: Path, name: str, deadline: float) -> "FakeLink":
        self.connects.append(self.now)
        self.on_connect()
        if not self.is_up:
            raise Lost(f"{path}: no process listens on it")
        self.link = FakeLink(self, path)
        return self.link


class FakeLink:
    def __init__(self, daemon: FakeDaemon, path: Path) -> None:
        self.daemon = daemon
        self.path = path
        self.welcome: dict[str, Any] = {}
        self.inbox: list[Frame] = []
        self.is_cut = False

    def send(self, parts: list[Buffer], deadline: float) -> None:
        if self.is_cut:
            raise Lost("the connection broke")
        head = wire.read_frame_head(parts[0])
        if head.kind is Kind.STATS:
            self.say(wire.document(Kind.REPORT, head.sequence, self.daemon.report))
        if head.kind is Kind.PUSH:
            self.daemon.pushes.append((self.daemon.now, bytes(parts[1])))
            self.answer(self.daemon.on_push(head.sequence))
        if head.kind is Kind.STAGE:
            body = b"".join(map(bytes, parts))[FRAME_HEAD_BYTES:]
            assert len(body) == head.body_bytes
            self.daemon.stages.append(body)
            self.answer(self.daemon.on_stage(head.sequence))
        if head.kind in (Kind.CONTROL, Kind.FETCH):
            self.daemon.asked.append(wire.read_json(parts[1]))
            self.answer(self.daemon.on_ask(head.sequence))

    def answer(self, frame: bytes | None) -> None:
        if frame is not None:
            self.say(frame)

    def say(self, frame: bytes) -> None:
        head = wire.read_frame_head(frame)
        self.inbox.append((head.kind, head.sequence, frame[FRAME_HEAD_BYTES:]))

    def receive(self, timeout: float) -> list[Frame]:
        if self.inbox:
            frames, self.inbox = self.inbox, []
            return frames
        if self.is_cut:
            raise Lost("the daemon closed the connection")
        self.daemon.now += timeout
        return []

    def close(self) -> None:
        self.is_cut = True


def ack(sequence: int, outcome: Outcome = Outcome.STORED) -> bytes:
    return wire.ack(sequence, outcome)


def refuse(code: Code, retry_after_ms: int = 0) -> Callable[[int], bytes]:
    def answer(sequence: int) -> bytes:
        return wire.error(sequence, Refused(code, "not now", retry_after_ms=retry_after_ms))

    return answer


def result(**members: Any) -> Callable[[int], bytes]:
    return lambda sequence: wire.document(Kind.RESULT, sequence, members)


def install(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """A daemon that every client made from now on connects to."""
    daemon = FakeDaemon()
    monkeypatch.setattr(exchange, "Link", daemon.connect)
    for module in (exchange, receipts):
        monkeypatch.setattr(module, "monotonic", daemon.monotonic)
        monkeypatch.setattr(module, "sleep", daemon.sleep)
    return daemon


def make_client(timeout: float = 60, wait: float = 0) -> Client:
    return Client([Path("/d.sock")], timeout=timeout, wait=wait)
