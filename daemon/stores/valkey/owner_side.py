"""What owners need of warm in Valkey beyond the port: validity, presence, mail, and a lost server.

A slice is leased only while its owner is valid: the daemon whose journal it belongs to, or whoever
holds the lease on its row of the cold store, says so again and again. An owner that cannot be
heard falls silent, its slices stay where they are, and once its validity has lapsed it may deliver
them by itself: nobody else takes them any more. A lease that was taken before goes on.

Outcomes of another daemon's runs are posts in that daemon's mailbox, put there in the step that
ends the lease. They are read without being removed; the owner removes them when it has recorded
them. Removing the same posts twice changes nothing, nor does it if the server has lost them.

What it can't do: say what became of entries that are not here any more. An owner that finds one
missing reads its mail first, and then enters it again.
"""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import trio
from redis.exceptions import OutOfMemoryError

from actors.model.clock import Clock
from actors.model.slices import InCold, InJournal, Slice
from actors.ports.tiers import StoreUnavailable
from daemon.stores.valkey import keys
from daemon.stores.valkey.entries import (
    RUN_KEY_BYTES,
    cold_owner,
    flow_mark,
    journal_owner,
    owner_of,
    read_runs,
    run_id_of,
    unpack_bits,
    unpack_entry,
)
from daemon.stores.valkey.server import Client, Server
from daemon.stores.valkey.shared_queue import SharedQueues, millis

MAIL_MAX: Final = 1000
MAIL_BYTES: Final = 4 * 1024 * 1024
PRESENT_SLICES: Final = 500
WITHDRAW_SLICES: Final = 500
WITHDRAW_BYTES: Final = 8 * 1024 * 1024
_LAST: Final = b"\xff" * (RUN_KEY_BYTES + 9)
"""Behind all that begins with the same bytes."""


class Present(NamedTuple):
    """What is here of one of this daemon's runs, under one loan."""

    run_id: bytes
    position: int
    token: int
    bits: int
    """All of its items that are here."""
    leased_bits: int
    """Those of them that somebody has in hand."""


class _Which(NamedTuple):
    """What is withdrawn; what is None does not matter."""

    flow: str | None = None
    positions: range | None = None
    run_id: bytes | None = None


class OwnerSide(SharedQueues):
    def __init__(self, server: Server, daemon: bytes, now_ms: Clock | None) -> None:
        super().__init__(server, daemon, now_ms)
        self._mail_read: dict[str, tuple[bytes, int]] = {}
        """By queue: its base, and how many posts had been removed when the mail was read."""
        self._generation = ""

    async def generation(self) -> str:
        """What the server's memory is known by. When it has changed, all that was entered before
        is lost. The first daemon that finds an empty server gives it one."""
        key = keys.generation_key(self._prefix)
        made = secrets.token_hex(8)

        async def ask(client: Client) -> str:
            await client.execute_command("SET", key, made, "NX")
            found: bytes | None = await client.execute_command("GET", key)
            if found is None:
                raise StoreUnavailable("Valkey: it does not keep what it is told")
            return found.decode()

        found = await self._server.step(ask)
        if found != self._generation:
            self._generation = found
            await self._server.check_policy()
        return found

    # Validity.

    async def keep_valid(self, queues: Sequence[str], valid_s: float) -> None:
        """Runs of this daemon's journal may be leased for so long from now. Where these queues
        are listed is said again as well: another node of a cluster has the lists, and may have
        lost them alone."""
        if queues:
            await self._server.step(partial(self._list_again, queues))
        lasts, owner = millis(valid_s), journal_owner(self._daemon)
        found = await self._run_each(keys.KEEP_VALID, queues, lasts, owner)
        for queue, (base, *_) in found.items():
            if not base or base != self._joined.get(queue):
                await self._joining(keys.KEEP_VALID, queue, lasts, owner)

    async def _list_again(self, queues: Sequence[str], client: Client) -> None:
        # A server without memory takes nothing, and is to drain all the same.
        with suppress(OutOfMemoryError):
            await self._list(queues, client)

    async def keep_rows_valid(self, queue: str, locks: Sequence[bytes], valid_s: float) -> None:
        """The same for rows of the cold store that were acquired under these locks."""
        if locks:
            owners = map(cold_owner, locks)
            await self._joining(keys.KEEP_VALID, queue, millis(valid_s), *owners)

    # Presence.

    async def present(self, queue: str) -> list[Present]:
        """What this daemon's journal has here. Each run as of one moment, a few hundred slices
        at a time."""
        mine = journal_owner(self._daemon)
        found: list[Present] = []
        start = b"[" + mine
        while True:
            _, slices = await self._run(
                keys.PRESENT, queue, start, b"[" + mine + _LAST, PRESENT_SLICES
            )
            if not slices:
                return found
            found += _by_run(slices, self._daemon)
            start = b"(" + slices[-1][:RUN_KEY_BYTES] + _LAST

    async def rows_present(self, queue: str) -> set[tuple[bytes, bytes]]:
        """Row and lock of all rows of the cold store that are here, leased ones too."""
        found: set[tuple[bytes, bytes]] = set()
        start = b"[C"
        while True:
            _, slices = await self._run(keys.PRESENT, queue, start, b"[C" + _LAST, PRESENT_SLICES)
            if not slices:
                return found
            for packed in slices:
                owner = owner_of(packed[:RUN_KEY_BYTES], self._daemon)
                assert isinstance(owner, InCold)
                found.add((owner.row, owner.lock))
            start = b"(" + slices[-1][:RUN_KEY_BYTES] + _LAST

    async def withdraw(
        self,
        queue: str,
        flow: str | None = None,
        positions: range | None = None,
        run_id: bytes | None = None,
    ) -> list[Slice]:
        owners = [journal_owner(self._daemon)]
        if positions is None:
            owners.append(b"C")
        which = _Which(flow, positions, run_id)
        taken: list[Slice] = []
        await trio.lowlevel.checkpoint_if_cancelled()
        # What was taken so far is nowhere else now: from here on it ends with an answer.
        with trio.CancelScope(shield=True):
            try:
                for owner in owners:
                    start = b"[" + owner
                    while start:
                        start = await self._withdraw_page(queue, owner, start, which, taken)
            except StoreUnavailable:
                if not taken:
                    raise
        return sorted(taken, key=lambda slice_: slice_.sort_key)

    async def _withdraw_page(
        self, queue: str, owner: bytes, start: bytes, which: _Which, taken: list[Slice]
    ) -> bytes:
        """Where the next page begins; nothing: this was the last."""
        answer = await self._step(
            keys.WITHDRAW,
            queue,
            start,
            b"[" + owner + _LAST,
            b"" if which.flow is None else flow_mark(which.flow),
            "" if which.positions is None else which.positions.start,
            "" if which.positions is None else which.positions.stop,
            WITHDRAW_SLICES,
            WITHDRAW_BYTES,
            which.run_id or b"",
        )
        records, pairs, last = answer.more
        runs = read_runs(pairs, self._daemon)
        entries = map(unpack_entry, records)
        taken += (entry.as_slice(runs[entry.run_key]) for entry in entries)
        return b"(" + last if last else b""

    # Mail.

    async def mail_queues(self) -> list[str]:
        """Those where this daemon has, or had, entries or mail."""
        own = keys.daemon_queues_key(self._prefix, self._daemon)
        found: set[bytes] = await self._server.command("SMEMBERS", own)
        return sorted(name.decode() for name in found)

    async def mail(self, queue: str) -> list[bytes]:
        """The oldest posts for this daemon, which stay where they are."""
        base, removed, posts = await self._run(
            keys.MAIL, queue, self._daemon.hex(), MAIL_MAX, MAIL_BYTES
        )
        self._mail_read[queue] = base, removed
        return list(posts)

    async def mail_done(self, queue: str, count: int) -> None:
        """Removes the first of those that were read: they are recorded."""
        base, removed = self._mail_read.get(queue, (b"", 0))
        if count and base:
            await self._run(
                keys.MAIL_DONE, queue, self._daemon.hex(), base, removed, count, shield=True
            )


def _by_run(slices: Sequence[bytes], daemon: bytes) -> list[Present]:
    found: dict[bytes, Present] = {}
    for packed in slices:
        key, is_leased = packed[:RUN_KEY_BYTES], packed[RUN_KEY_BYTES : RUN_KEY_BYTES + 1] == b"1"
        bits = unpack_bits(packed[RUN_KEY_BYTES + 1 :])
        before = found.get(key)
        if before is None:
            owner = owner_of(key, daemon)
            assert isinstance(owner, InJournal)
            before = Present(run_id_of(key), owner.position, owner.token, 0, 0)
        found[key] = before._replace(
            bits=before.bits | bits,
            leased_bits=before.leased_bits | (bits if is_leased else 0),
        )
    return list(found.values())
