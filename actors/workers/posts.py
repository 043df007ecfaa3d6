"""Posts: what became of items of another daemon's journal, as that daemon's mailbox has it.

Whoever leased them has ended the lease in the step that put the post there: it is certain, and
nobody else's. The owner alone applies it, and it has the run: a post names items by bits. `stays`
are slices that are back in warm for their next try; `later` and `dead` the owner must find a place
for. Errors go with them, since the owner has not seen them happen.

For the case that the owner never reads it, a post also names the write of its items, and has those
of `later` and `dead` themselves, as runs: they are nowhere else then (actors/fleet/adoption.py).

Members that a reader does not know are passed over: newer daemons may add some.

JSON, with bits as ranges: a post stands for a slice of up to thousands of items.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from actors.model.outcomes import Conclusion
from actors.model.slices import (
    Abroad,
    ItemError,
    LentRun,
    Slice,
    error_rows,
    item_bits,
    ranges,
    read_error,
)
from actors.spooler.moved_runs import moved_run
from forebay.errors import BadRun
from forebay.run import RunHead
from forebay.stage_frames import write_of

VERSION = 1
MINUTE_MS: Final = 60_000


class Post(NamedTuple):
    run_id: bytes
    position: int
    bits: int
    """The slice that was leased."""
    attempt: int
    delivered: int
    stays: tuple["Part", ...]
    later: tuple["Part", ...]
    dead: tuple["Part", ...]
    write: bytes = b""
    left: tuple[bytes, ...] = ()
    """The items of `later` and `dead`, as runs."""

    @property
    def concluded(self) -> int:
        """The items that something has become of."""
        bits = self.delivered
        for part in (*self.stays, *self.later, *self.dead):
            bits |= part.bits
        return bits


class Part(NamedTuple):
    """Items that share what has happened to them."""

    bits: int
    attempt: int
    due_ms: int
    errors: tuple[ItemError, ...]

    def of(self, run: LentRun) -> Slice:
        return Slice(run, self.bits, self.attempt, self.due_ms, self.errors)


class BadPost(Exception):
    """Not what a daemon writes."""


def make_post(slice_: Slice, conclusion: Conclusion, stays: Sequence[Slice]) -> bytes:
    """Empty if the owner need not hear of it: nothing has happened."""
    owner = slice_.run.owner
    assert isinstance(owner, Abroad)
    again = [part for part in conclusion.again if part.attempt > slice_.attempt]
    if not (conclusion.delivered or conclusion.dead or again):
        return b""
    later = [part for part in again if part not in stays]
    return json.dumps(
        _for_who_adopts(slice_.run.head, [*later, *conclusion.dead])
        | {
            "v": VERSION,
            "run": slice_.run.head.run_id.hex(),
            "position": owner.position,
            "bits": _pack(slice_.bits),
            "attempt": slice_.attempt,
            "delivered": _pack(conclusion.delivered),
            "stays": [_part(part) for part in again if part in stays],
            "later": [_part(part) for part in later],
            "dead": [_part(part) for part in conclusion.dead],
        },
        separators=(",", ":"),
    ).encode()


def read_post(data: bytes) -> Post:
    try:
        found = json.loads(data)
        if found["v"] != VERSION:
            raise BadPost(f"a post of version {found['v']}: a newer forebay wrote it")
        return Post(
            bytes.fromhex(found["run"]),
            int(found["position"]),
            _unpack(found["bits"]),
            int(found["attempt"]),
            _unpack(found["delivered"]),
            tuple(map(_read_part, found["stays"])),
            tuple(map(_read_part, found["later"])),
            tuple(map(_read_part, found["dead"])),
            bytes.fromhex(found.get("write", "")),
            tuple(map(b64decode, found.get("left", ()))),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadPost(f"a post that cannot be read: {error!r}") from error


def conclusion_of(
    post: Post, run: LentRun, current: int = -1
) -> tuple[Slice, Conclusion, tuple[Slice, ...]]:
    """The items that something has become of, what that is, and which of them are back in warm.
    Items that were given back untried are where they were, and not spoken of.

    `current`: items that have not moved on since then; what has was back in warm, and is not."""
    back = (part._replace(bits=part.bits & current) for part in post.stays)
    stays = tuple(part.of(run) for part in back if part.bits)
    later = tuple(part.of(run) for part in post.later)
    dead = tuple(part.of(run) for part in post.dead)
    leased = Slice(run, post.concluded, post.attempt)
    return leased, Conclusion(post.delivered, (*stays, *later), dead), stays


def _for_who_adopts(head: RunHead, gone: Sequence[Slice]) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if (write := write_of(head)) is not None:
        about["write"] = write.hex()
    left = []
    for slice_ in _merged(gone):
        # What cannot be unpacked is nothing that another could deliver.
        with suppress(BadRun):
            left.append(b64encode(moved_run(slice_)).decode())
    if left:
        about["left"] = left
    return about


def _merged(gone: Sequence[Slice]) -> list[Slice]:
    """Without errors, items that come due within the same minute are one slice, due with the last
    of them: each is made from the whole run, and every item may have an error of its own."""
    found: dict[tuple[int, int], Slice] = {}
    for slice_ in gone:
        when = slice_.attempt, slice_.due_ms // MINUTE_MS
        if (before := found.get(when)) is not None:
            due_ms = max(before.due_ms, slice_.due_ms)
            slice_ = replace(slice_, bits=before.bits | slice_.bits, due_ms=due_ms)
        found[when] = slice_
    return list(found.values())


def _part(slice_: Slice) -> list[Any]:
    return [_pack(slice_.bits), slice_.attempt, slice_.due_ms, error_rows(slice_.errors)]


def _read_part(found: list[Any]) -> Part:
    bits, attempt, due_ms, errors = found[:4]
    return Part(_unpack(bits), int(attempt), int(due_ms), tuple(map(read_error, errors)))


def _pack(bits: int) -> list[int]:
    return [edge for span in ranges(bits) for edge in span]


def _unpack(edges: list[int]) -> int:
    bits = 0
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        bits |= item_bits(first, last)
    return bits
