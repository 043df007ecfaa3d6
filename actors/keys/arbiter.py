"""Arbitration: decides on the items of several runs in one step.

A store provides the holders of the keys (`Known`, with whatever it finds an item by), asks for each
run in turn, and then carries out the decisions. Runs of one step see each other: a later item may
lose against an earlier one, or replace it before it was ever stored. `actors.model.keys.decide`
decides each item, in the order of the run; a run whose keys all differ and are all free, as most
are, is decided as a whole. No I/O here.

An item that is offered again for the time for which it waits already, and says the same, replaces
nothing: it is ignored. What is due at once has no such time: each offer of it is a new one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from actors.model.correlation import CORRELATION_HEADERS, TRACE_HEADER
from actors.model.keys import Holder, ItemRef, KeyRule, decide
from actors.model.slices import indexes, item_bits
from forebay.errors import BadRun
from forebay.ids import unpack_item_id
from forebay.keyed import ONLY_IF_HEADER, KeyOutcome
from forebay.run import IDS, Run, RunHead
from forebay.stage_frames import WRITE_HEADER

W = TypeVar("W")

CONTENT_BYTES: Final = 16
_WAYS: Final = frozenset({*CORRELATION_HEADERS, TRACE_HEADER, ONLY_IF_HEADER, WRITE_HEADER})


class Contents:
    """Digests of what the items of a run say to whoever gets them: the same for the same payload,
    priority, flow, action and headers, but for the headers that say on which way it came."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def of(self, index: int) -> bytes:
        digest = self._begun.copy()
        digest.update(self._run.payloads(index, index + 1)[0])
        return digest.digest()

    @cached_property
    def _begun(self) -> blake2b:
        head = self._run.head
        told = (
            (name, value) for name, value in head.headers().items() if name.lower() not in _WAYS
        )
        said = repr((head.priority, head.flow, head.action, sorted(told)))
        return blake2b(said.encode(), digest_size=CONTENT_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class Known(Generic[W]):
    """The holder of a key, and where the store finds that item."""

    holder: Holder
    where: W
    content: bytes = b""
    """What the item says (`Contents`); empty where it cannot be what an item of the step says
    (`may_be_same`)."""


@dataclass(slots=True, eq=False)
class Decided(Generic[W]):
    """The decision about items of one run."""

    run: Run
    outcomes: bytes = b""
    """One byte (`KeyOutcome`) per item."""
    won: int = 0
    """Items that are stored, as bits."""
    replaced_here: int = 0
    """Items that won and were replaced by a later item of the same step."""
    keys: dict[bytes, int] = field(default_factory=dict)
    """The keys of the winning items, and which item has each."""
    replaced: list[Known[W]] = field(default_factory=list)
    """Items that were stored before and must be deleted."""
    former: list[Known[W]] = field(default_factory=list)
    """All former holders of those keys, including the replaced ones."""


class Arbiter(Generic[W]):
    """For one queue and one step. `known`: the holders of the keys that the step's runs name."""

    def __init__(self, rule: KeyRule, now_ms: int, known: Mapping[bytes, Known[W]]) -> None:
        self._rule = rule
        self._now_ms = now_ms
        self._known = dict(known)
        self._taken: dict[bytes, Decided[W]] = {}
        """Keys that items of this step have taken, with their run."""

    def decide(self, run: Run, bits: int, only_if: ItemRef | None = None) -> Decided[W]:
        """Decides on these items of a run. Raises BadRun if it cannot be unpacked."""
        keys = run.keys()
        named = key_places(keys, bits)
        if only_if is None and self._are_free(named, keys, bits):
            decided: Decided[W] = Decided(run, bytes(bits.bit_count()), bits, keys=named)
            self._taken.update(dict.fromkeys(named, decided))
            return decided
        return self._one_by_one(run, keys, bits, only_if)

    def _are_free(self, named: dict[bytes, int], keys: Sequence[bytes], bits: int) -> bool:
        """Whether all keys of these items differ and are free."""
        unnamed = bits.bit_count() - len(named)
        if unnamed and unnamed != sum(1 for index in indexes(bits) if not keys[index]):
            return False
        return named.keys().isdisjoint(self._known) and named.keys().isdisjoint(self._taken)

    def _one_by_one(
        self, run: Run, keys: Sequence[bytes], bits: int, only_if: ItemRef | None
    ) -> Decided[W]:
        decided: Decided[W] = Decided(run)
        items, contents, outcomes = item_refs(run), Contents(run), bytearray()
        policy = self._rule.policy
        has_time = policy == "replace" and run.head.due_ms > 0
        for index in indexes(bits):
            key, item = keys[index], items[index]
            holder = self._holder(key)
            is_same = has_time and self._is_same(key, run.head, contents, index)
            outcome = decide(holder, item, policy, self._now_ms, only_if, is_same=is_same)
            outcomes.append(outcome)
            is_lost = outcome in (KeyOutcome.IGNORED, KeyOutcome.CONFLICT)
            # An item that already holds its key is stored, or done.
            if is_lost or (holder is not None and holder.item == item):
                continue
            decided.won |= 1 << index
            if key:
                self._take(key, decided, index, is_update=outcome is KeyOutcome.UPDATED)
        decided.outcomes = bytes(outcomes)
        return decided

    def _holder(self, key: bytes) -> Holder | None:
        if not key:
            return None
        run = self._taken.get(key)
        if run is not None:
            return Holder(item_ref(run.run, run.keys[key]), "waiting")
        known = self._known.get(key)
        return None if known is None else known.holder

    def _is_same(self, key: bytes, head: RunHead, contents: Contents, index: int) -> bool:
        """Whether the item that waits under the key says what this one says, for the same time."""
        earlier = self._taken.get(key)
        if earlier is not None:
            if earlier.run.head.due_ms != head.due_ms:
                return False
            return Contents(earlier.run).of(earlier.keys[key]) == contents.of(index)
        known = self._known.get(key)
        if known is None or not known.content or not may_be_same(known.holder, head):
            return False
        return known.content == contents.of(index)

    def _take(self, key: bytes, decided: Decided[W], index: int, *, is_update: bool) -> None:
        earlier = self._taken.get(key)
        if earlier is not None:
            bit = 1 << earlier.keys.pop(key)
            earlier.won &= ~bit
            earlier.replaced_here |= bit
        elif key in self._known:
            known = self._known.pop(key)
            decided.former.append(known)
            if is_update:
                decided.replaced.append(known)
        decided.keys[key] = index
        self._taken[key] = decided


def key_places(keys: Sequence[bytes], bits: int) -> dict[bytes, int]:
    """The keys of these items, and which item has each (the last, if several do)."""
    if bits == item_bits(0, len(keys)):
        named = dict(zip(keys, range(len(keys)), strict=True))
    else:
        named = {keys[index]: index for index in indexes(bits)}
    named.pop(b"", None)
    return named


def may_be_same(holder: Holder, head: RunHead) -> bool:
    """Whether an item of a run is offered for the time for which the holder of its key waits, and
    has not been tried."""
    return holder.phase == "waiting" and not holder.attempt and 0 < head.due_ms == holder.due_ms


def item_refs(run: Run) -> Sequence[ItemRef]:
    """The items of a run, by the ids that they have in every tier."""
    if run.head.flags & IDS:
        try:
            return [ItemRef(*unpack_item_id(packed)) for packed in run.packed_ids()]
        except ValueError as problem:
            raise BadRun(str(problem)) from None
    return [ItemRef(run.head.run_id, index) for index in range(run.head.count)]


def item_ref(run: Run, index: int) -> ItemRef:
    if run.head.flags & IDS:
        return ItemRef(*unpack_item_id(run.packed_ids(index, index + 1)[0]))
    return ItemRef(run.head.run_id, index)
