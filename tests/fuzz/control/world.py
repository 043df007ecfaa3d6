"""A daemon in a process of its own, the state that a fuzzer needs to reach its deeper parts, and
what must hold whatever is sent to it.

`World.send` sends steps and judges every answer. `World.look` reads the log, `World.end` restarts
the daemon after SIGKILL and after SIGTERM and looks at its books. A neighbour (neighbour.py) is
served all the time. The first thing that is wrong raises `Broken`, which names the step; all steps
so far are then in `transcript`, to be replayed.
"""

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from forebay.encode import encode_run
from forebay.ids import format_item_id
from forebay.lease_frames import read_leased
from forebay.run import Run, read_head
from forebay.stage_frames import WRITE_HEADER
from forebay.wire import Kind, answer_to, hello, read_frame_head
from tests.daemon.cli.commands import Host
from tests.eventually import eventually_sync
from tests.fuzz.control.neighbour import Neighbour
from tests.fuzz.control.operations import DESTINATION
from tests.fuzz.control.routes import ENDLESS, described
from tests.fuzz.control.steps import Frame, Push, Request, Restart, Step, control, frame, write_step

DEADLINE_S: Final = 60.0
"""For an answer. Nothing is measured by it: a request that takes as long hangs."""
DYING_S: Final = 5.0
RSS_MAX: Final = 400 * 1024 * 1024
LOG_LINES: Final = 40
RECENT: Final = 8
GONE: Final = ("delivered", "dead", "dropped", "deleted", "lost", "held", "moved_out")
CONFIG: Final = {
    "socket": {"max_run_bytes": "1Mi"},
    "http": {"listen": "127.0.0.1:0", "rate_limit": 0},
}

_WORD = re.compile(rb"@([a-z]+)(\d?)@")


class Broken(AssertionError):
    """Something that must hold does not."""


class World:
    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        self.host = Host(directory, {**CONFIG, **config})
        self.transcript: list[Step] = []
        self.counts: Counter[str] = Counter()
        """Cases by operation."""
        self.answers: Counter[tuple[str, str]] = Counter()
        """By operation and what it was answered."""
        self.slowest: list[tuple[float, str]] = []
        self.peak_rss = 0
        self._socket: socket.socket | None = None
        self._http: http.client.HTTPConnection | None = None
        self._sequence = 0
        self._known: dict[str, deque[bytes]] = {}
        self._runs = self._names = 0
        self._log_at = 0
        self._neighbour = Neighbour(self.host.socket)
        self._statuses: dict[str, set[int]] = {}
        self.document: dict[str, Any] = {}

    def start(self) -> None:
        """Returns when the daemon serves, and its state is there."""
        self.host.start(anew=False)
        self.document = json.loads(self._get("/openapi.json"))
        self._statuses = {
            operation: {*map(int, about["responses"]), 404, 405}
            for operation, (_, _, about) in described(self.document).items()
        }
        self._neighbour.start()
        self.send(PROLOGUE)

    def operations(self) -> set[str]:
        """Those of the running daemon, as it lists them to someone who asks for another."""
        text = self._exchange(control("no.such")).decode()
        return set(re.findall(r"\b[a-z]+\.[a-z]+\b", text)) - {"no.such"}

    # Sending.

    def send(self, steps: Sequence[Step], *, at_once: bool = False) -> None:
        """One after the other, or all frames at once; judges each answer."""
        if at_once and all(isinstance(step, Frame | Push) for step in steps):
            self._send_at_once(steps)
        else:
            for step in steps:
                self._send_one(step)
        self.look(steps)

    def _send_one(self, step: Step) -> None:
        self.transcript.append(step)
        self.counts[step.name] += 1
        began = time.monotonic()
        with self._blaming(step):
            match step:
                case Request():
                    self._request(step)
                case Restart():
                    self.restart(step.how)
                case _:
                    self._exchange(step)
        self.slowest = sorted([*self.slowest, (time.monotonic() - began, step.name)])[-3:]

    @contextmanager
    def _blaming(self, *steps: Step) -> Iterator[None]:
        try:
            yield
        except TimeoutError as problem:
            raise Broken(f"not answered within {DEADLINE_S:g} s: {[*steps]}") from problem
        except (OSError, EOFError, http.client.HTTPException) as problem:
            assert self.host.daemon is not None
            # Its connections end a moment before it does.
            with suppress(subprocess.TimeoutExpired):
                self.host.daemon.wait(DYING_S)
            self._check_alive(steps)
            raise Broken(f"not answered, but for {problem!r}: {[*steps]}") from problem

    # Frames.

    def _exchange(self, step: Frame | Push) -> bytes:
        while True:
            kind, data = self._encoded(step)
            sequence = self._write(kind, data)
            answer, body = self._read(sequence)
            if self._judge(step, kind, data, answer, body):
                return body
            time.sleep(0.05)

    def _send_at_once(self, steps: Sequence[Step]) -> None:
        sent: dict[int, tuple[Step, Kind, bytes]] = {}
        with self._blaming(*steps):
            for step in steps:
                assert isinstance(step, Frame | Push)
                self.transcript.append(step)
                self.counts[step.name] += 1
                kind, data = self._encoded(step)
                sent[self._write(kind, data)] = (step, kind, data)
            while sent:
                sequence, answer, body = self._read_any()
                step, kind, data = sent.pop(sequence)
                # One that is to be repeated is not: others of its kind are.
                self._judge(step, kind, data, answer, body)

    def _write(self, kind: Kind, data: bytes) -> int:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(DEADLINE_S)
            self._socket.connect(str(self.host.socket))
            self._socket.sendall(hello("fuzzer"))
            self._sequence = 0
            self._read(0)
        self._sequence += 1
        head = struct.pack("<IBBHI", len(data), kind, 0, 0, self._sequence)
        self._socket.sendall(head + data)
        return self._sequence

    def _read(self, sequence: int) -> tuple[Kind, bytes]:
        found, kind, body = self._read_any()
        assert found == sequence, (found, sequence, kind, body)
        return kind, body

    def _read_any(self) -> tuple[int, Kind, bytes]:
        head = read_frame_head(self._take(12))
        body = self._take(head.body_bytes)
        if head.kind is Kind.ERROR and head.sequence == 0:
            raise Broken(f"the daemon ends the connection: {body!r}")
        return head.sequence, head.kind, body

    def _take(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            some = self._socket.recv(size - len(data))
            if not some:
                raise EOFError("the connection was closed")
            data += some
        return bytes(data)

    def _encoded(self, step: Frame | Push) -> tuple[Kind, bytes]:
        if isinstance(step, Frame):
            return Kind[step.kind], self._filled_in(step.body.encode("latin-1"))
        self._runs += 1
        run_id = bytes.fromhex("0198c0de0a0070008000") + self._runs.to_bytes(6, "big")
        if step.new_write:
            self._note("write", f"{self._runs:032x}")
        write = self._word(b"write", 0) if step.stage else b""
        due = {"now": 0, "soon": 300, "later": 3_600_000}[step.due]
        run = encode_run(
            [b'{"n":%d}' % n for n in range(step.items)],
            queue=step.queue,
            keys=[b"k%d" % (n % 2) for n in range(step.items)] if step.keys else None,
            flow=step.flow,
            priority=step.priority,
            due_ms=due and time.time_ns() // 10**6 + due,
            headers={WRITE_HEADER: write.decode()} if step.stage else {"correlation_id": "v"},
            run_id=run_id,
        )
        for index in range(step.items):
            self._note("item", format_item_id(run_id, index))
        if not step.stage:
            return Kind.PUSH, run
        stage = bytes.fromhex(write.decode()) + step.stage.to_bytes(16, "big")
        return Kind.STAGE, stage + run

    def _judge(self, step: Step, kind: Kind, data: bytes, answer: Kind, body: bytes) -> bool:
        """False: it is to be sent again."""
        if answer is Kind.ERROR:
            error = strict_json(body)
            code = error["code"]
            self.answers[step.name, code] += 1
            if code == "INTERNAL" or error["fatal"]:
                raise Broken(f"{step!r} was answered {error}\n{self._log_end()}")
            return code != "UNAVAILABLE" or self._check_patience(step, str(error))
        self.answers[step.name, "ok"] += 1
        if answer != answer_to(kind):
            raise Broken(f"{step!r} was answered by {answer.name} {body[:200]!r}")
        if answer in (Kind.RESULT, Kind.REPORT):
            self._learn(strict_json(body))
        elif answer is Kind.FETCHED:
            (about_bytes,) = struct.unpack_from("<I", body)
            self._learn(strict_json(body[4 : 4 + about_bytes]))
        elif answer is Kind.LEASED:
            for lease in read_leased(body):
                run = Run(read_head(lease.run), lease.run)
                self._note_lease(lease.token, run.head.queue, run.item_ids(0, 1)[0])
        return True

    # HTTP.

    def _request(self, step: Request) -> None:
        while True:
            target = self._filled_in(step.target.encode()).decode("latin-1").replace(" ", "%20")
            body = None if step.body is None else self._filled_in(step.body.encode("latin-1"))
            is_reused = self._http is not None
            if self._http is None:
                self._http = self._connection()
            try:
                self._http.request(step.method, target, body, dict(step.headers))
                answer = self._http.getresponse()
            except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
                # The server ends a connection that has been idle for a while.
                self._drop_http()
                if is_reused:
                    continue
                raise
            if step.name in ENDLESS and answer.status == 200:
                answer.close()
                self._drop_http()
                self.answers[step.name, "200"] += 1
                return
            data = answer.read()
            if self._judge_answer(step, answer.status, answer.getheader("Content-Type", ""), data):
                return
            time.sleep(0.05)

    def _judge_answer(self, step: Request, status: int, kind: str, data: bytes) -> bool:
        self.answers[step.name, "ok" if status < 300 else str(status)] += 1
        if (status >= 500 and status != 503) or status not in self._statuses[step.name]:
            raise Broken(f"{step!r} was answered {status} {data[:2000]!r}\n{self._log_end()}")
        if "json" in kind and "ndjson" not in kind and data:
            content = strict_json(data)
            self._learn(content)
            if status == 503 and content.get("code") not in ("BUSY", "DRAINING"):
                return step.name == "readyz" or self._check_patience(step, str(content))
        return True

    def _connection(self) -> http.client.HTTPConnection:
        address = (self.host.state_dir / "http.address").read_text().strip()
        return http.client.HTTPConnection(address.partition("//")[2], timeout=DEADLINE_S)

    def _get(self, path: str) -> bytes:
        connection = self._connection()
        connection.request("GET", path)
        data = connection.getresponse().read()
        connection.close()
        return data

    def _drop_http(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    # What is known.

    def _learn(self, content: Mapping[str, Any]) -> None:
        found = content.get("cursor")
        if isinstance(found, str):
            self._note("cursor", found)
        found = content.get("id")
        if isinstance(found, str):
            self._note("job" if len(found) == 16 else "item", found)
        token = content.get("token")
        if isinstance(token, str) and isinstance(found, str):
            number, _, queue = token.partition(".")
            self._note_lease(int(number), queue, found)

    def _note_lease(self, token: int, queue: str, item_id: str) -> None:
        self._note("token", struct.pack("<Q", token))
        self._note("queue", bytes([len(queue)]) + queue.encode())
        self._note("lease", f"{token}.{queue}")
        self._note("leased", item_id)

    def _note(self, word: str, value: str | bytes) -> None:
        known = self._known.setdefault(word, deque(maxlen=RECENT))
        known.appendleft(value.encode() if isinstance(value, str) else value)

    def _word(self, word: bytes, number: int) -> bytes:
        known = self._known.get(word.decode())
        return known[number % len(known)] if known else b""

    def _filled_in(self, text: bytes) -> bytes:
        def value(found: re.Match[bytes]) -> bytes:
            if found[1] == b"new":
                self._names += 1
                return b"new-%d" % self._names
            return self._word(found[1], int(found[2] or b"0")) or found[0]

        return _WORD.sub(value, text) if b"@" in text else text

    # What must hold.

    def look(self, steps: Iterable[Step] = ()) -> None:
        """The daemon lives, its log has no traceback, the neighbour is served."""
        self._check_alive(steps)
        with (self.host.directory / "daemon.log").open("rb") as log:
            log.seek(self._log_at)
            new = log.read()
            self._log_at = log.tell()
        if b"Traceback" in new or b'"exception"' in new:
            raise Broken(f"the log has a traceback after {[*steps]}:\n{self._log_end()}")
        self._neighbour.check()

    def check_memory(self) -> None:
        assert self.host.daemon is not None
        status = Path(f"/proc/{self.host.daemon.pid}/status").read_text()
        rss, peak = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) for name in SIZES)
        self.peak_rss = max(self.peak_rss, peak * 1024)
        if rss * 1024 > RSS_MAX:
            raise Broken(f"the daemon has {rss // 1024} MiB, and had {peak // 1024} at its peak")

    def check_books(self) -> None:
        """accepted = delivered + dead + dropped + deleted + lost + held, once nothing moves."""

        def balanced() -> None:
            report = strict_json(self._exchange(frame(Kind.STATS, b"")))
            for name, books in {"": report["daemon"], **report["queues"]}.items():
                came = books["accepted"] + books.get("moved_in", 0)
                gone = sum(books.get(fate, 0) for fate in GONE)
                assert came == gone, (name, books)
                assert all(count >= 0 for count in books.values() if isinstance(count, int)), books

        eventually_sync(balanced, "the books balance")

    def restart(self, how: str) -> None:
        """The daemon comes back on what it has kept."""
        self._disconnect()
        with self._neighbour.paused(is_exact=how == "stop"):
            code = self.host.stop(signal.SIGKILL if how == "kill" else signal.SIGTERM)
            if how == "stop" and code != 0:
                raise Broken(f"told to stop, the daemon ended with {code}\n{self._log_end()}")
            try:
                self.host.start(anew=False)
            except AssertionError as problem:
                raise Broken(f"it does not start again:\n{self._log_end()}") from problem

    def end(self) -> None:
        """Looks at everything, with two restarts between."""
        self.check_memory()
        self.check_books()
        for how in ("kill", "stop"):
            self.restart(how)
            self.check_books()
            self.look()
        self._neighbour.end()
        self._disconnect()
        code = self.host.stop()
        if code != 0:
            raise Broken(f"told to stop, the daemon ended with {code}\n{self._log_end()}")

    def close(self) -> None:
        """However it is."""
        self._neighbour.abandon()
        self._disconnect()
        if self.host.daemon is not None:
            self.host.daemon.kill()
            self.host.daemon.wait()
            self.host.daemon = None

    def write_transcript(self, path: Path, steps: Iterable[Step] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.transcript[len(PROLOGUE) :] if steps is None else steps
        path.write_text("".join(f"{write_step(step)}\n" for step in lines))

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._drop_http()

    def _check_alive(self, steps: Iterable[Step]) -> None:
        assert self.host.daemon is not None
        code = self.host.daemon.poll()
        if code is not None:
            self.host.daemon = None
            raise Broken(f"the daemon ended with {code} after {[*steps]}\n{self._log_end()}")

    def _check_patience(self, step: Step, said: str) -> bool:
        """The stores are there: what they refuse for now, they must take later."""
        if self.answers[step.name, "UNAVAILABLE"] > 500:
            raise Broken(f"{step!r} is answered again and again: {said}")
        return False

    def _log_end(self) -> str:
        log = (self.host.directory / "daemon.log").read_bytes()[-200_000:]
        lines = log.decode(errors="replace").replace("\\n", "\n").splitlines()
        told = [line for line in lines if '"level": "info"' not in line]
        return "\n".join(told[-LOG_LINES:])


SIZES: Final = ("VmRSS", "VmHWM")


def strict_json(data: bytes) -> dict[str, Any]:
    def refuse(name: str) -> float:
        raise Broken(f"the answer has {name} in it, which is not JSON: {data[:500]!r}")

    try:
        content = json.loads(data.decode(), parse_constant=refuse)
    except ValueError as problem:
        raise Broken(f"the answer is not JSON: {problem}: {data[:500]!r}") from problem
    return content if isinstance(content, dict) else {"content": content}


def _settled(queue: str, what: int, text: bytes = b"") -> Frame:
    """The latest lease, in one part."""
    flags, delay = (1, 2**32 - 1) if what == 2 else (0, 0)
    part = struct.pack("<BBIHH", what, flags, delay, 0, len(text)) + text
    body = b"@queue0@" + struct.pack("<H", 1) + b"@token0@" + struct.pack("<H", 1) + part
    return frame(Kind.SETTLE, body)


def _lease(queue: str) -> Frame:
    return frame(Kind.LEASE, json.dumps({"queue": queue, "wait_ms": 5000, "items": 2}).encode())


PROLOGUE: Final[tuple[Step, ...]] = (
    control("queues.add", queue="jobs", settings={"history": "all", "max_retries": 2}),
    control("queues.add", queue="sink", settings={"handler": {"type": "null"}}),
    control(
        "queues.add",
        queue="away",
        settings={
            "handler": {"type": "http", "url": f"{DESTINATION}/hook", "timeout": "1s"},
            "breaker": {"reset_timeout": "1h"},
            "retry_rules": [{"error": "refused", "delay": "1h"}],
        },
    ),
    control("queues.add", queue="keyed", settings={"unique": "replace", "history": "all"}),
    control("queues.add", queue="claimed", settings={"history": "failures"}),
    *(Push(queue, 3) for queue in ("jobs", "jobs", "sink", "away", "claimed")),
    Push("keyed", 2, keys=True),
    _lease("jobs"),
    _settled("jobs", 2, b"no such customer"),
    _lease("jobs"),
    _settled("jobs", 1, b"done"),
    Push("jobs", 2, due="later"),
    control("cron.add", name="one", settings={"queue": "jobs", "every": "1h", "payload": {"n": 1}}),
    control("cron.run", name="one"),
    control(
        "trigger.add",
        name="two",
        settings={"type": "QUEUE", "queue": "spare", "target": "sink", "polling_interval": "100ms"},
    ),
    Push("spare", 2),
    control("streams.claim", queue="claimed", consumer="nightly", after=0, items=1),
    Push("jobs", 1, stage=1, new_write=True),
    control("stage.seal", write="@write0@", stage=f"{1:032x}", runs=1, items=1),
    control("write.publish", write="@write0@", stages=[f"{1:032x}"], app="feed", version=1),
    Push("jobs", 1, stage=1, new_write=True),
    control("job.start", what="dead.retry", which={"queue": "nosuch"}),
)
"""Something of everything, so that operations find what they act on."""
