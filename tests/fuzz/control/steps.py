"""What is sent to the daemon: frames, runs, HTTP requests, and restarts between them.

A step is data, so that it can be shrunk, written down and replayed. What only the daemon knows
(tokens of leases, cursors, ids of jobs) stands in it as a word such as `@token0@` and is filled in
when it is sent; 0 is the latest one.
"""

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from forebay.wire import Kind
from tests.fuzz.control.operations import (
    CONSUMER,
    OPERATIONS,
    QUEUES,
    UNKNOWN_NAMES,
    cursor,
    flow,
    queue,
)
from tests.fuzz.control.values import Leaf, Shape, bodies, flag, leaves, needs, one_of, plain, whole

_REPEATED: Final = re.compile(r"((?:\\x[0-9a-f]{2}|[^'\\]){1,8}?)\1{15,}")


@dataclass(frozen=True, slots=True, repr=False)
class Frame:
    kind: str
    body: str
    """Each character is a byte."""
    name: str
    """Of the operation, for the count."""

    def __repr__(self) -> str:
        return f"{self.kind} {shown(self.body.encode('latin-1'))}"


@dataclass(frozen=True, slots=True)
class Push:
    """A run whose id follows from how many there were before."""

    queue: str
    items: int = 1
    keys: bool = False
    priority: int = 5
    due: Literal["now", "soon", "later"] = "now"
    flow: str = ""
    stage: int = 0
    """0: not staged."""
    new_write: bool = False
    name: str = "PUSH"


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    method: str
    target: str
    body: str | None
    headers: tuple[tuple[str, str], ...]
    name: str

    def __repr__(self) -> str:
        body = "" if self.body is None else f" {shown(self.body.encode('latin-1'))}"
        return f"{self.method} {self.target} {dict(self.headers)}{body}"


@dataclass(frozen=True, slots=True)
class Restart:
    how: Literal["kill", "stop"]
    name: str = "restart"


Step = Frame | Push | Request | Restart
Deck = list[tuple[int, SearchStrategy[Step]]]
"""Strategies with weights."""


def shown(body: bytes) -> str:
    """As a Python expression, to be sent again by hand: what is repeated is written once."""
    # With a double quote in it, it is written between single ones.
    text = repr(b'"' + body)[3:-1]

    def times(found: re.Match[str]) -> str:
        return f"' + b'{found[1]}' * {len(found[0]) // len(found[1])} + b'"

    return f"b'{_REPEATED.sub(times, text)}'"


def write_step(step: Step) -> str:
    return json.dumps({"step": type(step).__name__, **asdict(step)})


def read_step(line: str) -> Step:
    fields: dict[str, Any] = json.loads(line)
    match fields.pop("step"):
        case "Frame":
            return Frame(**fields)
        case "Push":
            return Push(**fields)
        case "Request":
            return Request(**{**fields, "headers": tuple(map(tuple, fields["headers"]))})
        case _:
            return Restart(**fields)


def frame(kind: Kind, body: bytes, name: str = "") -> Frame:
    return Frame(kind.name, body.decode("latin-1"), name or kind.name)


def control(op: str, /, **members: Any) -> Frame:
    """A valid one."""
    return frame(Kind.CONTROL, json.dumps({"op": op, **members}).encode(), op)


# Frames with a JSON body.

WAITS: Final = ("-1", "3600001", "1e400", "NaN", '"1"', "null", "true", "1.5", "9" * 30)
LEASE: Final = needs(
    "queue",
    queue=queue,
    items=whole(1, 65_536),
    bytes=whole(1, 2**24),
    lease_ms=Leaf((0, 100, 60_000), ("604800000", "604800001", "1")),
    wait_ms=Leaf((0, 1, 20), WAITS, only_these=True),
    consumer=CONSUMER,
    keep=flag,
    times=flag,
)
FETCH_PARTS: Final = {"rows": whole(1, 4096), "bytes": whole(1, 2**24)}
FETCHES: Final = (
    needs(
        "queue",
        "consumer",
        "claim",
        queue=one_of("claimed", "spare", odd=UNKNOWN_NAMES),
        consumer=CONSUMER,
        claim=whole(1, 2**53 - 1),
        first=whole(0, 2**53 - 1),
        **FETCH_PARTS,
    ),
    needs(
        "queue",
        "state",
        queue=queue,
        state=one_of("queued", "cold", "history"),
        cursor=cursor,
        **FETCH_PARTS,
    ),
)


def worth(shapes: Sequence[Shape]) -> int:
    """How often something of these shapes is sent: more often if there is more to it."""
    return max(1, min(10, sum(map(leaves, shapes)) // 3))


def operation(op: str) -> SearchStrategy[Frame]:
    shapes = [bodies(shape, f'"op":{json.dumps(op)}') for shape in OPERATIONS[op]]
    return st.one_of(shapes).map(lambda body: frame(Kind.CONTROL, body, op))


def plain_operation(op: str) -> Frame:
    """The simplest one that is valid."""
    body = f'{{"op":{json.dumps(op)},{plain(OPERATIONS[op][0])[1:]}'.replace(",}", "}")
    return frame(Kind.CONTROL, body.encode(), op)


# Frames about leases.

_PART: Final = struct.Struct("<BBIHH")
TEXTS: Final = (b"", b"no", b"a" * 28 + b"!", b"\xff\xfe", b"a\x00b", b"e" * 1000, b"e" * 1001)
BITS: Final = (b"", b"", b"\x01", b"\x02", b"\xff", b"\x00", b"\xff" * 512, b"\xff" * 513)
DELAYS: Final = (2**32 - 1, 0, 10, 70_000, 2**32 - 2)


@st.composite
def parts(draw: DrawFn) -> bytes:
    """What became of some items."""
    what = draw(st.sampled_from((1, 2, 3, 2, 2, 0, 4)))
    flags = draw(st.sampled_from((0, 0, 1, 3, 4))) if what == 2 else 0
    delay = draw(st.sampled_from(DELAYS)) if what == 2 else 0
    bits = draw(st.sampled_from(BITS))
    text = b"" if what == 3 else draw(st.sampled_from(TEXTS))
    return _PART.pack(what, flags, delay, len(bits), len(text)) + bits + text


@st.composite
def settles(draw: DrawFn) -> bytes:
    leases = []
    for _ in range(draw(st.integers(1, 2))):
        of_lease = draw(st.lists(parts(), max_size=3))
        leases.append(struct.pack("<8sH", _token(draw), len(of_lease)) + b"".join(of_lease))
    return _queue(draw) + struct.pack("<H", len(leases)) + b"".join(leases)


@st.composite
def extends(draw: DrawFn) -> bytes:
    tokens = [_token(draw) for _ in range(draw(st.integers(1, 3)))]
    lease_ms = draw(st.sampled_from((0, 100, 60_000, 604_800_000, 604_800_001, 2**32 - 1)))
    return _queue(draw) + struct.pack("<IH", lease_ms, len(tokens)) + b"".join(tokens)


def _queue(draw: DrawFn) -> bytes:
    own = b"@queue0@"
    return draw(st.sampled_from((own, own, own, b"\x04jobs", b"\x00", b"\x03a b", b"\x02\xff\xfe")))


def _token(draw: DrawFn) -> bytes:
    numbers = (*(f"@token{n}@".encode() for n in range(3)), b"\0" * 8, b"\xff" * 8)
    return draw(st.sampled_from(numbers))


@st.composite
def damaged(draw: DrawFn, whole: SearchStrategy[bytes]) -> bytes:
    """Binary bodies, some of them too short, too long, or with a byte changed."""
    body = draw(whole)
    match draw(st.integers(0, 9)):
        case 9:
            return body[: draw(st.integers(0, len(body)))]
        case 8:
            return body + draw(st.binary(min_size=1, max_size=9))
        case 7:
            at = draw(st.integers(0, len(body) - 1))
            return body[:at] + draw(st.binary(min_size=1, max_size=2)) + body[at + 1 :]
        case _:
            return body


def pushes() -> SearchStrategy[Push]:
    return st.builds(
        Push,
        st.sampled_from(QUEUES),
        st.integers(1, 3),
        st.booleans(),
        st.sampled_from((5, 0, 255)),
        st.sampled_from(("now", "now", "soon", "later")),
        st.sampled_from(flow.valid),
        st.just(0),
    )


def stagings() -> SearchStrategy[Push]:
    return st.builds(
        Push,
        queue=st.sampled_from(QUEUES),
        items=st.just(1),
        stage=st.integers(1, 3),
        new_write=st.booleans(),
        name=st.just("STAGE"),
    )


def frames() -> Deck:
    """Everything that goes over the socket. What makes and takes items comes often, so that the
    operations find something to act on."""
    fetch = st.one_of([bodies(shape) for shape in FETCHES])
    others: Deck = [
        (20, pushes()),
        (16, bodies(LEASE).map(lambda body: frame(Kind.LEASE, body))),
        (16, damaged(settles()).map(lambda body: frame(Kind.SETTLE, body))),
        (8, stagings()),
        (8, fetch.map(lambda body: frame(Kind.FETCH, body))),
        (3, damaged(extends()).map(lambda body: frame(Kind.EXTEND, body))),
    ]
    return others + [(worth(shapes), operation(op)) for op, shapes in OPERATIONS.items()]


@st.composite
def dealt(draw: DrawFn, deck: Deck) -> Step:
    """One of the deck, each as often as its weight says. (`one_of` takes each once.)"""
    places = [place for place, (weight, _) in enumerate(deck) for _ in range(weight)]
    return draw(deck[draw(st.sampled_from(places))][1])
