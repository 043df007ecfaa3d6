"""The examples of docs/protocol.md, made by the real codec."""

import zlib

from actors.settings import SocketSettings
from forebay import checksum, wire
from forebay.errors import Refused
from forebay.run import encode_run
from forebay.wire import Kind, Outcome

RUN_ID = bytes.fromhex("0198c0de0a0070008000000000000001")


def make_run() -> bytes:
    return encode_run(
        [b'{"id":1}', b'{"id":22}'],
        queue="crm",
        priority=5,
        enqueued_ms=1_755_000_000_000,
        run_id=RUN_ID,
        compressed=False,
    )


def make_run_crc32() -> bytes:
    """The same run as a client makes it that has only zlib."""
    kept = checksum.crc32c
    checksum.crc32c = None
    try:
        return make_run()
    finally:
        checksum.crc32c = kept


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
    assert zlib.crc32 is checksum.crc32
    full = Refused("QUEUE_FULL", "the spool is full", retry_after_ms=1000)
    frame = Refused("BAD_FRAME", "frame type 255 is not known", fatal=True)
    return {
        "HELLO": wire.hello("example"),
        "WELCOME": make_welcome(),
        "PUSH with CRC-32C": wire.frame(Kind.PUSH, 1, make_run()),
        "PUSH with CRC-32": wire.frame(Kind.PUSH, 2, make_run_crc32()),
        "ACK, stored": wire.ack(1, Outcome.STORED),
        "ACK, duplicate": wire.ack(2, Outcome.DUPLICATE),
        "ERROR, not fatal": wire.error(2, full),
        "ERROR, fatal": wire.error(wire.CONNECTION, frame),
        "PING": wire.frame(Kind.PING, 3, b"hi"),
        "PONG": wire.frame(Kind.PONG, 3, b"hi"),
        "GOODBYE": wire.frame(Kind.GOODBYE, 4),
        "FAREWELL": wire.frame(Kind.FAREWELL, 4),
    }
