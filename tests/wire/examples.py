"""The examples of docs/protocol.md, made by the real codec."""

import zlib

import forebay.head as run_head
from actors.config.settings import SocketSettings
from forebay import lease_frames, wire
from forebay.errors import Refused
from forebay.fetch_frames import FetchedRow, FetchWish, pack_fetch, pack_fetched
from forebay.keyed import KeyOutcome, decided
from forebay.lease_frames import LeasedRun, LeaseReport, LeaseWish, Part, What
from forebay.run import encode_run
from forebay.stage_frames import WRITE_HEADER, pack_stage_head
from forebay.wire import Kind, Outcome

RUN_ID = bytes.fromhex("0198c0de0a0070008000000000000001")
STAGED_RUN_ID = bytes.fromhex("0198c0de0a0070008000000000000002")
WRITE = bytes.fromhex("0198c0de0a0070008000000000000003")
STAGE = bytes.fromhex("5f0c6b0e0d1a4c3f9a55d1d0c8a7e001")

DECIDED = (KeyOutcome.CREATED, KeyOutcome.IGNORED, KeyOutcome.CREATED)


def make_run(run_id: bytes = RUN_ID, headers: dict[str, str] | None = None) -> bytes:
    return encode_run(
        [b'{"id":1}', b'{"id":22}'],
        queue="crm",
        priority=5,
        enqueued_ms=1_755_000_000_000,
        run_id=run_id,
        headers=headers,
        compressed=False,
    )


def make_run_crc32() -> bytes:
    """The same run as a client makes it that has only zlib."""
    kept = run_head.crc32c
    run_head.crc32c = None
    try:
        return make_run()
    finally:
        run_head.crc32c = kept


def make_welcome() -> bytes:
    settings = SocketSettings()
    content = {
        "version": 1,
        "daemon": "forebay",
        "max_run_bytes": settings.max_run_bytes,
        "window_bytes": settings.window_bytes,
        "window_frames": settings.window_frames,
        "idle_timeout_ms": 0,
    }
    return wire.document(Kind.WELCOME, 0, content)


def make_examples() -> dict[str, bytes]:
    assert zlib.crc32 is run_head.crc32
    full = Refused("QUEUE_FULL", "the spool is full", retry_after_ms=1000)
    frame = Refused("BAD_FRAME", "frame type 255 is not known", fatal=True)
    return {
        "HELLO": wire.hello("example"),
        "WELCOME": make_welcome(),
        "PUSH with CRC-32C": wire.frame(Kind.PUSH, 1, make_run()),
        "PUSH with CRC-32": wire.frame(Kind.PUSH, 2, make_run_crc32()),
        "ACK, stored": wire.ack(1, Outcome.STORED),
        "ACK, duplicate": wire.ack(2, Outcome.DUPLICATE),
        "ACK, decided": decided(3, bytes(DECIDED)),
        "ERROR, not fatal": wire.error(2, full),
        "ERROR, fatal": wire.error(wire.CONNECTION, frame),
        "PING": wire.frame(Kind.PING, 3, b"hi"),
        "PONG": wire.frame(Kind.PONG, 3, b"hi"),
        "GOODBYE": wire.frame(Kind.GOODBYE, 4),
        "FAREWELL": wire.frame(Kind.FAREWELL, 4),
        **make_lease_examples(),
        **make_control_examples(),
        **make_write_examples(),
        **make_claim_examples(),
    }


TOKEN = 17
LEASED_UNTIL_MS = 1_755_000_060_000
DUE_MS = 1_755_000_000_000


def make_lease_examples() -> dict[str, bytes]:
    wish = LeaseWish("crm", items=10, lease_ms=60_000, wait_ms=1000)
    leased = LeasedRun(TOKEN, LEASED_UNTIL_MS, 0, 0, make_run())
    parts = (Part(What.DELIVERED, 0b01), Part(What.FAILED, 0, "no such customer", 5000))
    return {
        "LEASE": lease_frames.lease(5, wish),
        "LEASED": wire.frame(Kind.LEASED, 5, lease_frames.pack_leased([leased])),
        "LEASED, nothing": wire.frame(Kind.LEASED, 6, lease_frames.pack_leased([])),
        "LEASED, with times": wire.frame(
            Kind.LEASED, 5, lease_frames.pack_leased([leased._replace(due_ms=DUE_MS)])
        ),
        "EXTEND": wire.frame(Kind.EXTEND, 7, lease_frames.pack_extend("crm", 120_000, [TOKEN])),
        "EXTENDED": wire.frame(Kind.EXTENDED, 7, lease_frames.pack_statuses([True])),
        "SETTLE": wire.frame(
            Kind.SETTLE, 8, lease_frames.pack_settle("crm", [LeaseReport(TOKEN, parts)])
        ),
        "SETTLED": wire.frame(Kind.SETTLED, 8, lease_frames.pack_statuses([True])),
    }


def make_control_examples() -> dict[str, bytes]:
    return {
        "CONTROL": wire.document(Kind.CONTROL, 9, {"op": "queues.pause", "queue": "crm"}),
        "RESULT": wire.document(
            Kind.RESULT,
            9,
            {
                "queue": "crm",
                "origin": "push",
                "is_paused": True,
                "paused_flows": [],
                "settings": {},
            },
        ),
    }


def make_write_examples() -> dict[str, bytes]:
    run = make_run(STAGED_RUN_ID, {WRITE_HEADER: WRITE.hex()})
    return {"STAGE": wire.frame(Kind.STAGE, 10, pack_stage_head(WRITE, STAGE) + run)}


def make_claim_examples() -> dict[str, bytes]:
    wish = FetchWish("crm", "nightly", 1, rows=100)
    rows = [FetchedRow(0, 0, 0, None, make_run())]
    return {
        "FETCH": wire.frame(Kind.FETCH, 11, pack_fetch(wish)),
        "FETCHED": wire.frame(Kind.FETCHED, 11, pack_fetched({"next": None}, rows)),
    }
