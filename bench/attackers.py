"""Hostile clients: each costs itself little and would like to cost the daemon much.

An attack is a function that goes on until its siege is over. It opens its own connections, and
opens them again when the daemon has cut them off. tests/daemon/process/test_attacks.py and
bench/attacks.py run them beside a client that behaves well.
"""

import http.client
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forebay import connect, encode_run, lease_frames, wire
from forebay.errors import ForebayError
from forebay.ids import format_item_id, new_run_id
from forebay.lease_frames import LeaseReport, Part, What
from forebay.limits import CONTROL_BYTES_MAX, FRAME_HEAD_BYTES, LEASES_MAX, SETTLE_BYTES_MAX
from forebay.wire import Kind

STEP_S: Final = 0.2
"""How often a waiting attacker looks whether it is over."""
LARGE_ITEM_BYTES: Final = 3 * 1024 * 1024
BODY_BYTES: Final = 2 * 1024 * 1024 - 1024
"""Just what a request over HTTP may have."""
VICTIM: Final = "victim"


@dataclass(frozen=True, slots=True)
class Target:
    socket: Path
    http: str
    """http://HOST:PORT"""


@dataclass(slots=True)
class Siege:
    """What an attack and those who watch it know of each other."""

    is_over: Callable[[], bool]
    blows: int = 0
    """How often it has done what it does: about, since threads count together."""


Attack = Callable[[Target, Siege], None]


class Over(Exception):
    """The attack is over."""


class Attacker:
    """A connection that says HELLO and then sends whatever it likes."""

    def __init__(self, target: Target, siege: Siege) -> None:
        self._is_over = siege.is_over
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(STEP_S)
        try:
            self._sock.connect(str(target.socket))
            self.send(wire.hello("attacker"))
            self.receive()
        except (OSError, Over):
            self._sock.close()
            raise

    def send(self, data: bytes) -> None:
        """Raises OSError when it is cut off, and Over."""
        view = memoryview(data)
        while view:
            if self._is_over():
                raise Over
            with suppress(TimeoutError):
                view = view[self._sock.send(view) :]

    def receive(self) -> wire.FrameHead:
        """The head of the next answer, whose body is thrown away."""
        head = wire.read_frame_head(self._take(FRAME_HEAD_BYTES))
        self._take(head.body_bytes)
        return head

    def hold(self) -> None:
        """Says and reads nothing more, until it is cut off."""
        ended = select.poll()
        ended.register(self._sock, 0)
        while not self._is_over():
            if ended.poll(STEP_S * 1000):
                return

    def close(self) -> None:
        self._sock.close()

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if self._is_over():
                raise Over
            with suppress(TimeoutError):
                part = self._sock.recv(size - len(data))
                if not part:
                    raise ConnectionResetError
                data += part
        return bytes(data)


def over_and_over(
    target: Target, siege: Siege, connections: int, act: Callable[[Attacker], None]
) -> None:
    """`act` on so many connections at a time, again whenever it has returned or was cut off."""

    def one() -> None:
        while not siege.is_over():
            attacker: Attacker | None = None
            try:
                attacker = Attacker(target, siege)
                act(attacker)
            except OSError:
                # Cut off, or turned away: there may be a place later.
                time.sleep(STEP_S)
            except Over:
                return
            finally:
                if attacker is not None:
                    attacker.close()

    threads = [threading.Thread(target=one, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def announce(target: Target, siege: Siege) -> None:
    """1,000 connections, each with 12 bytes that announce the largest CONTROL."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    head = wire.frame_head(Kind.CONTROL, 1, CONTROL_BYTES_MAX)
    attackers = []
    with suppress(OSError, Over):
        for _ in range(1000):
            attackers.append(Attacker(target, siege))
            attackers[-1].send(head)
            siege.blows += 1
    while not siege.is_over():
        time.sleep(STEP_S)
    for attacker in attackers:
        attacker.close()


def begin_frames(target: Target, siege: Siege) -> None:
    """60 connections, each with three quarters of the largest CONTROL."""
    part = wire.frame_head(Kind.CONTROL, 1, CONTROL_BYTES_MAX) + bytes(CONTROL_BYTES_MAX * 3 // 4)

    def act(attacker: Attacker) -> None:
        attacker.send(part)
        siege.blows += 1
        attacker.hold()

    over_and_over(target, siege, 60, act)


def leave_unread(target: Target, siege: Siege) -> None:
    """Each of 8 connections asks 300 times for an item of 3 MiB, and reads nothing."""
    run_id = new_run_id()
    with connect(target.socket, 60) as client:
        client.submit(encode_run([b"x" * LARGE_ITEM_BYTES], queue=VICTIM, run_id=run_id))
        client.drain()
    item = format_item_id(run_id, 0)
    asks = b"".join(
        wire.document(
            Kind.CONTROL, number, {"op": "items.show", "id": item, "payload": True, "whole": True}
        )
        for number in range(1, 301)
    )

    def act(attacker: Attacker) -> None:
        attacker.send(asks)
        siege.blows += 1
        attacker.hold()

    over_and_over(target, siege, 8, act)


def fail_with_patterns(target: Target, siege: Siege) -> None:
    """Failures, 500 at a time, each with another text, against patterns that backtrack."""
    rules = [{"error": pattern} for pattern in ("(a+)+$", "(a|aa)+$", "(?:a?){100}a{100}$")]
    settings = {"handler": {"type": "pull"}, "retry_rules": rules, "max_retries": 1000}
    settings["backoff"] = {"enabled": False}
    with connect(target.socket, 60) as client:
        client.control("queues.add", queue="patterns", settings=settings)
        client.push("patterns", [b"x"] * 500)
        for number in count():
            if siege.is_over():
                return
            with suppress(ForebayError), client.lease("patterns", 500, wait_s=1) as items:
                for at, item in enumerate(items):
                    items.nack(item, error=f"{number} {at} {'a' * 900}!")
            siege.blows += 1


def settle_many_parts(target: Target, siege: Siege) -> None:
    """SETTLE frames of 8 MiB, with a part in every 10 bytes."""
    part = lease_frames.pack_report(LeaseReport(1, (Part(What.DELIVERED),)))[10:]
    lease = (1).to_bytes(8, "little") + (4096).to_bytes(2, "little") + part * 4096
    leases = (SETTLE_BYTES_MAX - 100) // len(lease)
    body = b"\x06" + VICTIM.encode() + leases.to_bytes(2, "little") + lease * leases
    _ask_for_ever(target, siege, wire.frame(Kind.SETTLE, 1, body))


def settle_many_leases(target: Target, siege: Siege) -> None:
    """SETTLE frames with as many leases as are allowed; none of them is held."""
    reports = [LeaseReport(token, (Part(What.DELIVERED),)) for token in range(LEASES_MAX)]
    body = lease_frames.pack_settle(VICTIM, reports)
    _ask_for_ever(target, siege, wire.frame(Kind.SETTLE, 1, body))


def control_many_values(target: Target, siege: Siege) -> None:
    """CONTROL frames that are full of empty lists."""
    body = b'{"op":"items.find","which":[%s[]]}'
    body %= b"[]," * ((CONTROL_BYTES_MAX - 100) // 3)
    _ask_for_ever(target, siege, wire.frame(Kind.CONTROL, 1, body))


def control_long_text(target: Target, siege: Siege) -> None:
    """CONTROL frames with one text that is all escapes."""
    body = b'{"op":"items.show","id":"%s"}' % (b"\\n" * ((CONTROL_BYTES_MAX - 100) // 2))
    _ask_for_ever(target, siege, wire.frame(Kind.CONTROL, 1, body))


def post_many_values(target: Target, siege: Siege) -> None:
    """POST of 2 MiB that are full of empty lists."""
    body = b'{"queue":"%s","payload":[%s[]]}'
    body %= (VICTIM.encode(), b"[]," * ((BODY_BYTES - 100) // 3))
    _post_for_ever(target, siege, "/api/queue-items/add", body, "application/json")


def post_allowed_values(target: Target, siege: Siege) -> None:
    """POST of 2 MiB with nearly as many numbers as are allowed."""
    numbers = b",".join(b"%.13f" % (number / 95_000) for number in range(95_000))
    body = b'{"queue":"%s","payload":[%s]}' % (VICTIM.encode(), numbers)
    _post_for_ever(target, siege, "/api/queue-items/add", body, "application/json")


def post_lines(target: Target, siege: Siege) -> None:
    """Bulk adding of 20,000 lines that are refused, and 100,000 that are empty."""
    body = b"{}x\n" * 20_000 + b"\n" * 100_000
    path = f"/api/v2/queues/{VICTIM}/items"
    _post_for_ever(target, siege, path, body, "application/x-ndjson")


ATTACKS: Final[Mapping[str, Attack]] = {
    "announce": announce,
    "begin_frames": begin_frames,
    "leave_unread": leave_unread,
    "fail_with_patterns": fail_with_patterns,
    "settle_many_parts": settle_many_parts,
    "settle_many_leases": settle_many_leases,
    "control_many_values": control_many_values,
    "control_long_text": control_long_text,
    "post_many_values": post_many_values,
    "post_allowed_values": post_allowed_values,
    "post_lines": post_lines,
}

SETTINGS: Final[Mapping[str, Any]] = {VICTIM: {"handler": {"type": "pull"}}}
"""The queues that a daemon needs for all of them."""


def _ask_for_ever(target: Target, siege: Siege, frame: bytes) -> None:
    """The same request on 8 connections, as fast as it is answered."""

    def act(attacker: Attacker) -> None:
        while True:
            attacker.send(frame)
            attacker.receive()
            siege.blows += 1

    over_and_over(target, siege, 8, act)


def _post_for_ever(target: Target, siege: Siege, path: str, body: bytes, media: str) -> None:
    """The same request on 8 connections, as fast as it is answered."""
    address = urlsplit(target.http)

    def posts() -> Iterator[None]:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
        try:
            while not siege.is_over():
                connection.request("POST", path, body, {"Content-Type": media})
                connection.getresponse().read()
                siege.blows += 1
                yield
        finally:
            connection.close()

    def one() -> None:
        while not siege.is_over():
            with suppress(OSError, http.client.HTTPException):
                for _ in posts():
                    pass

    threads = [threading.Thread(target=one, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
