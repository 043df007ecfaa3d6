"""Items as a CRM feed has them: JSON of about 300 bytes that Snappy makes 2.5 times smaller.

Half of an item is the same in all items (names of fields, few regions and stages), half is its
own (numbers, names, a note). Made before the clock starts, from a seed.
"""

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Final

from forebay.head import crc32c
from forebay.ids import new_run_id

ITEM_BYTES: Final = 300
REGIONS: Final = ("emea-north", "emea-south", "apac", "americas")
STAGES: Final = ("lead", "trial", "customer", "churn-risk", "won-back")
FIRST: Final = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Radia", "Leslie", "Frances")
LAST: Final = ("Lovelace", "Hopper", "Dijkstra", "Liskov", "Knuth", "Perlman", "Lamport", "Allen")
WORDS: Final = (
    "asked",
    "renewal",
    "price",
    "called",
    "back",
    "seats",
    "export",
    "invoice",
    "upgrade",
    "pilot",
    "legal",
    "meeting",
    "budget",
    "demo",
    "quarter",
    "security",
    "review",
    "moved",
    "waiting",
    "contract",
    "signed",
    "support",
    "ticket",
    "delivery",
    "partner",
    "region",
)

_CHECKSUM_AT: Final = slice(8, 12)
_RUN_ID_AT: Final = slice(16, 32)
"""docs/formats.md, "Header"."""


def crm_items(count: int, seed: int = 1) -> list[bytes]:
    return list(islice(crm_stream(seed), count))


def crm_runs(runs: int, items: int, seed: int = 1) -> list[list[bytes]]:
    """The payloads of a few runs, for a producer that goes round and round."""
    stream = crm_stream(seed)
    return [list(islice(stream, items)) for _ in range(runs)]


def crm_stream(seed: int = 1) -> Iterator[bytes]:
    """Items without end, each with an `event_id` that no other item has."""
    rng = random.Random(seed)
    while True:
        yield _item(rng)


def restamp(run: bytes) -> bytes:
    """The same run with an id of its own, so that it is not taken for a duplicate.

    Costs a copy and a checksum: 20 µs for 120 KB, where encoding and compressing take 500 to 800.
    """
    assert crc32c is not None, "the benchmarks need the package crc32c"
    stamped = bytearray(run)
    stamped[_RUN_ID_AT] = new_run_id()
    with memoryview(stamped) as view:
        crc = crc32c(view[_CHECKSUM_AT.stop :], crc32c(view[: _CHECKSUM_AT.start], 0))
    stamped[_CHECKSUM_AT] = crc.to_bytes(4, "little")
    return bytes(stamped)


def _item(rng: random.Random) -> bytes:
    first, last = rng.choice(FIRST), rng.choice(LAST)
    customer = rng.randrange(10**7)
    item = {
        "event": "customer.updated",
        "event_id": f"{rng.getrandbits(128):032x}",
        "customer": customer,
        "at": f"2025-06-{rng.randrange(1, 31):02}T{rng.randrange(24):02}:"
        f"{rng.randrange(60):02}:{rng.randrange(60):02}.{rng.randrange(1000):03}Z",
        "name": f"{first} {last}",
        "email": f"{first}.{last}{customer % 1000}@example.com".lower(),
        "region": rng.choice(REGIONS),
        "stage": rng.choice(STAGES),
        "amount": rng.randrange(10**7) / 100,
        "consent": rng.random() < 0.9,
        "trace": f"{rng.getrandbits(64):016x}",
        "note": "",
    }
    room = max(0, ITEM_BYTES - len(_json(item)) + rng.randrange(-20, 21))
    note = ""
    while len(note) < room:
        note += rng.choice(WORDS) + " "
    item["note"] = note[:room]
    return _json(item)


def _json(item: dict[str, object]) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()
