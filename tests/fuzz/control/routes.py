"""HTTP requests for every route of /openapi.json: path, query, headers and body.

Which routes there are, and which parameters each has, is the daemon's word; what is put into them
is said here. A route or parameter that is not described here fails a test.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fuzz.control.operations import (
    DESTINATION,
    HTTP_QUEUE,
    QUEUE_SETTINGS,
    QUEUE_TRIGGER,
    SCHEDULE_CHANGE,
    SCHEDULES,
    TIME_TRIGGERS,
    TRIGGER_CHANGE,
    WHICH_DEAD,
    any_payload,
    cursor,
    flow,
    headers,
    item,
    limit,
    moment,
    name,
    new,
    payload_b64,
    priority,
    queue,
    reason,
    write,
)
from tests.fuzz.control.steps import WAITS, Deck, Request, worth
from tests.fuzz.control.values import (
    Each,
    Leaf,
    Shape,
    Spec,
    bodies,
    flag,
    needs,
    one_of,
    plain,
    whole,
    written,
)

VALUE_CHARS_MAX: Final = 2000
"""Of a parameter: a longer line is not read by an HTTP server at all."""
AGES: Final = ('"1w"', '"..s"', '"99999999999999999d"', '"1.1.1s"', '"0.0000000000000001"', '"1e9"')
age: Final = one_of("1s", "7d", odd=AGES)
trace: Final = one_of("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "x", odd=('"\\u00e9"', '""'))

PARAMETERS: Final[Mapping[str, Leaf]] = {
    "queue": queue,
    "item_id": item,
    "job_id": one_of("@job@", odd=('"0123456789abcdef"',)),
    "write": write,
    "name": name,
    "flow": flow,
    "action": flow,
    "items": one_of("keep", "delete"),
    "state": Leaf(("QUEUED", "FAILED", "DONE"), ('"queued"',)),
    "key": one_of("k0"),
    "reference": one_of("k1"),
    "correlation_id": one_of("v"),
    "traceparent": trace,
    "x-correlation-id": trace,
    "error": one_of("no", "%"),
    "failure_reason": reason,
    "older_than": age,
    "newer_than": age,
    "cursor": cursor,
    "limit": limit,
    "consumer": one_of("c", odd=('"' + "c" * 26 + '"',)),
    "lease_s": one_of(0.1, 60, odd=("0", "604800", "604801", "1e-320", "-0")),
    "wait_s": Leaf((0, 0.01), (*WAITS[:4], "31"), only_these=True),
    "died_before_ms": moment,
    "died_after_ms": moment,
    "payloads": flag,
    "destination": one_of(DESTINATION, odd=('"' + "d" * 2049 + '"',)),
    "over": flag,
    "count": whole(1, 100),
    "after": whole(0, 2**53),
    "kind": one_of("breaker", "queue", "lost"),
    "last-event-id": one_of("0", "17", odd=('"-1"', '"9223372036854775808"')),
    "minutes": whole(1, 60),
    "points": whole(2, 720),
}

NEW_ITEM_PARTS: Final[Mapping[str, Spec]] = {
    "payload": any_payload,
    "reference": one_of("k0", "k1", odd=('"' + "\\u00e9" * 200 + '"', '""')),
    "priority": priority,
    "due_ms": moment,
    "delay_s": one_of(0, 0.1, odd=("315360000", "315360001", "1e-320")),
    "flow": flow,
    "action": flow,
    "headers": headers,
    "run_id": one_of(
        "0198c0de-0a00-7000-8000-0000000000aa", odd=(f'"{"0" * 8}-0000-0000-0000-{"0" * 12}"',)
    ),
}
NEW_ITEM: Final = needs(**NEW_ITEM_PARTS)
NEW_ITEM_B64: Final = needs("payload_b64", payload_b64=payload_b64, reference=one_of("k0"))
TOKEN: Final = one_of(
    "@lease0@", odd=('"0.jobs"', f'"{"9" * 20}.jobs"', '"1.nosuch"', '"\\u0661.a"')
)
WHICH: Final = needs(**{key: spec for key, spec in WHICH_DEAD.members.items() if key != "ids"})
CHOSEN: Final = (
    needs("ids", ids=Each(item)),
    needs("which", which=WHICH),
    needs("all", all=flag),
)

BODIES: Final[Mapping[str, Sequence[Shape]]] = {
    "addQueue": (
        needs("queue", queue=new, settings=QUEUE_SETTINGS),
        needs("queue", "settings", queue=new, settings=HTTP_QUEUE),
    ),
    "tryQueue": (
        needs("payload", payload=any_payload, key=flow, flow=flow, action=flow, send=flag),
        needs("payload_b64", payload_b64=payload_b64),
        needs("from_dead", from_dead=item),
    ),
    "setQueue": (needs("settings", settings=QUEUE_SETTINGS),),
    "addItemById": (needs("queue_id", queue_id=queue, **NEW_ITEM_PARTS),),
    "addItem": (
        needs("queue", queue=queue, **NEW_ITEM_PARTS),
        needs("queue", "payload_b64", queue=queue, payload_b64=payload_b64),
    ),
    "addItems": (NEW_ITEM, NEW_ITEM_B64),
    "ackItem": (needs("token", token=TOKEN, result=one_of("", "done")),),
    "nackItem": (
        needs(
            "token",
            token=TOKEN,
            error=one_of("", "no", odd=('"' + "a" * 28 + '!"',)),
            delay_s=one_of(0, 0.1, None, odd=("2147483.648", "2147484", "1e-320")),
            failure_reason=reason,
            permanent=one_of(True, False, None),
        ),
    ),
    "extendItem": (
        needs("token", "lease_s", token=TOKEN, lease_s=one_of(0.1, 60, odd=("604800", "1e-320"))),
    ),
    "changeItem": (
        needs(
            "state",
            state=one_of("QUEUED", "SCHEDULED", "FAILED", "DELETED", "DONE"),
            payload=any_payload,
            priority=priority,
            due_ms=moment,
            error=one_of("given up"),
        ),
        needs("payload_b64", payload_b64=payload_b64, due_ms=moment),
        needs("priority", priority=priority, payload=any_payload),
    ),
    "retryDeadLetters": CHOSEN,
    "deleteDeadLetters": CHOSEN[:1],
    "editDeadLetter": (
        needs("payload", payload=any_payload),
        needs("payload_b64", payload_b64=payload_b64),
    ),
    "forceBreaker": (needs("state", state=one_of("open", "closed", "auto")),),
    "createSchedule": tuple(needs("name", "settings", name=new, settings=one) for one in SCHEDULES),
    "changeSchedule": (needs("settings", settings=SCHEDULE_CHANGE),),
    "createTrigger": tuple(
        needs("name", "settings", name=new, settings=one) for one in (QUEUE_TRIGGER, *TIME_TRIGGERS)
    ),
    "changeTrigger": (
        needs("settings", settings=TRIGGER_CHANGE),
        needs("settings", settings=SCHEDULE_CHANGE),
    ),
}
ENDLESS: Final = frozenset({"streamEvents"})
"""An answer that has no end is read as far as its head."""

Document = Mapping[str, Any]


def described(document: Document) -> dict[str, tuple[str, str, Mapping[str, Any]]]:
    """Method, path and description of every operation, by its id."""
    return {
        about["operationId"]: (method.upper(), path, about)
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    }


def missing(document: Document) -> list[str]:
    """What the daemon has and this file does not describe."""
    found = []
    for operation, (_, _, about) in described(document).items():
        found += [
            f"{operation}: parameter {parameter['name']}"
            for parameter in about.get("parameters", ())
            if parameter["name"] not in PARAMETERS
        ]
        if "requestBody" in about and operation not in BODIES:
            found.append(f"{operation}: body")
    return found


def requests(document: Document) -> Deck:
    return [
        (worth(BODIES.get(operation, ())), _request(operation, *of))
        for operation, of in described(document).items()
    ]


def plain_request(operation: str, method: str, path: str, about: Mapping[str, Any]) -> Request:
    """The simplest one that is valid."""
    query, head, body = [], [], None
    for one in about.get("parameters", ()):
        value = PARAMETERS[one["name"]].valid[0]
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", value)
        elif one.get("required"):
            query.append(f"{one['name']}={_quoted(value)}")
    if "requestBody" in about:
        head.append(("Content-Type", next(iter(about["requestBody"]["content"]))))
        body = plain(BODIES[operation][0])
    target = f"{path}?{'&'.join(query)}" if query else path
    return Request(method, target, body, tuple(head), operation)


@st.composite
def _request(
    draw: DrawFn, operation: str, method: str, path: str, about: Mapping[str, Any]
) -> Request:
    # Either a parameter is odd, or the body is.
    damages = draw(st.sampled_from((0, 0, 1)))
    parameters = about.get("parameters", ())
    present = [one for one in parameters if one.get("required") or draw(st.integers(0, 3)) == 0]
    odd = draw(st.sampled_from(present))["name"] if present and damages else None
    query, head = [], []
    for one in present:
        text = _text(draw, PARAMETERS[one["name"]], int(one["name"] == odd))
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", _quoted(text) or "-")
        elif one["in"] == "query":
            query.append(f"{one['name']}={_quoted(text)}")
        else:
            head.append((one["name"], _header(text)))
    if damages and odd is None:
        query.append(f"{draw(st.sampled_from(('x', 'limit', '', '%00', 'queue')))}=%ff")
    body = None
    if "requestBody" in about:
        kind = next(iter(about["requestBody"]["content"]))
        shapes = [bodies(shape) for shape in BODIES[operation]]
        if kind == "application/json":
            data = draw(st.one_of(shapes))
        else:
            data = b"\n".join(draw(st.lists(st.one_of(shapes), max_size=3)))
        if draw(st.integers(0, 40)) == 40:
            kind = draw(st.sampled_from(("text/plain", "application/json; charset=utf-16", "")))
        head.append(("Content-Type", kind))
        body = data.decode("latin-1")
    target = f"{path}?{'&'.join(query)}" if query else path
    return Request(method, target, body, tuple(head), operation)


def _text(draw: DrawFn, leaf: Leaf, damages: int) -> str:
    """A value as it stands in a path or a query: a text without its quotes, else JSON."""
    text = written(draw, leaf, damages)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return (value if isinstance(value, str) else text)[:VALUE_CHARS_MAX]


def _quoted(text: str) -> str:
    # What is filled in later stays as it is.
    return quote(text.encode(errors="surrogatepass"), safe="@")


def _header(text: str) -> str:
    return "".join(c for c in text if " " <= c <= "~" or "\xa1" <= c <= "\xff").strip()[:500]
