"""Daemons as Valkey knows them, and what a daemon that never returns has left there.

Each queue knows the owners of its slices, and until when they are valid. What a lapsed owner has is
leased by nobody: it may be read, stored elsewhere, and only then be taken out, slice by slice, so
that whoever does this may be killed at any point and nothing is lost. One at a time does it for a
daemon (`claim`), and every step checks that the owner has not come back.

What it can't do: read or take what somebody has in hand. That ends with its lease: it is reported
to the lost daemon's mailbox, which can be read as well, or it is there again.
"""

from collections.abc import Sequence
from typing import Final

from actors.fleet.adoption import LeftThere, MailLeft, OwnerInQueue
from daemon.stores.valkey.entries import journal_owner, pack_token, read_runs, unpack_entry
from daemon.stores.valkey.lua_owners import POSTS
from daemon.stores.valkey.lua_state import STATE
from daemon.stores.valkey.server import Client, Server, script
from daemon.stores.valkey.shared_queue import SharedQueues, millis

LOOK_SLICES: Final = 200
LOOK_BYTES: Final = 4 * 1024 * 1024
OWNERS_MAX: Final = 1000
MAIL_MAX: Final = 200
"""Posts at a time: those of dead letters have their items in them."""

_OWNERS: Final = script(
    STATE
    + r"""
-- how many owners at most: of each daemon, until when it is valid, items here, and in hand
local found, seen = {}, {}
local function note(owner)
  if seen[owner] or #found >= tonumber(ARGV[2]) then return end
  seen[owner] = true
  local items, leased, from = 0, 0, '[' .. owner
  while true do
    local members = call('ZRANGEBYLEX', ALL, from, '[' .. owner .. string.rep('\255', 41),
      'LIMIT', 0, PAGE)
    if #members == 0 then break end
    for _, member in ipairs(members) do
      local number = sub(member, 50)
      local count_ = numbers(call('HGET', SLICES, number))
      items = items + count_
      if call('ZSCORE', LEASES, number) then leased = leased + count_ end
    end
    from = '(' .. members[#members]
  end
  found[#found + 1] = {sub(owner, 2), valid_until(owner), items, leased}
end
for _, owner in ipairs(call('ZRANGE', VALID, 0, -1)) do
  if sub(owner, 1, 1) == 'J' then note(owner) end
end
-- Who has been silent for a day is valid no more, and may still have something here.
local from = '[J'
while true do
  local member = call('ZRANGEBYLEX', ALL, from, '(K', 'LIMIT', 0, 1)[1]
  if not member then break end
  note(sub(member, 1, 17))
  from = '(' .. sub(member, 1, 17) .. string.rep('\255', 41)
end
return {base or '', now, found}
"""
)

_LEFT: Final = script(
    STATE
    + r"""
-- the owner, from, how many slices and bytes at most: what nobody has in hand, and stays here
if valid_until(ARGV[2]) > now then return {base or '', 1, {}, {}, ''} end
local records, runs, seen, bytes, last = {}, {}, {}, 0, ''
local to = '[' .. ARGV[2] .. string.rep('\255', 41)
for _, member in ipairs(call('ZRANGEBYLEX', ALL, ARGV[3], to, 'LIMIT', 0, ARGV[4])) do
  last = member
  local number = sub(member, 50)
  if not call('ZSCORE', LEASES, number) then
    local key = sub(member, 1, 49)
    records[#records + 1] = call('HGET', SLICES, number)
    if not seen[key] then
      seen[key] = true
      local data = call('HGET', RUNS, key)
      runs[#runs + 1], runs[#runs + 2] = key, data
      bytes = bytes + #data
    end
    if bytes >= tonumber(ARGV[5]) then break end
  end
end
return {base or '', 0, records, runs, last}
"""
)

_TAKE: Final = script(
    STATE
    + r"""
-- the owner; numbers of slices: how many items were taken out, or -1: it is valid again
call('ZREM', LEASES, '')
if valid_until(ARGV[2]) > now then return {base or '', -1} end
local items = 0
for at = 3, #ARGV do
  local rec = call('HGET', SLICES, ARGV[at])
  if rec and sub(rec, 44, 60) == ARGV[2] and take_out(rec) then
    items = items + numbers(rec)
    drop_run(run_key(rec))
  end
end
save()
return {base or '', items}
"""
)


_MAIL_LEFT: Final = script(
    STATE
    + POSTS
    + r"""
-- the daemon, from, how many and how many bytes at most: its mail, which stays
local first, posts_max, bytes_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local removed = tonumber(call('HGET', STATE, 'mailed:' .. ARGV[2]) or 0)
local stored = tonumber(call('HGET', STATE, 'adopted:' .. ARGV[2]) or 0)
return {base or '', removed, math.max(0, stored - removed),
  posts_from(ARGV[2], first, posts_max, bytes_max)}
"""
)

_MAIL_STORED: Final = script(
    STATE
    + r"""
-- the daemon, the base when its mail was read, and how many posts there were until then, with those
-- that it had removed: what they alone have is stored elsewhere
call('ZREM', LEASES, '')
local field = 'adopted:' .. ARGV[2]
if base == ARGV[3] and tonumber(call('HGET', STATE, field) or 0) < tonumber(ARGV[4]) then
  call('HSET', STATE, field, ARGV[4])
end
return {base or ''}
"""
)


class LostOwners(SharedQueues):
    """The daemons' side of `actors/fleet/adoption.py`."""

    def __init__(self, server: Server, daemon: bytes) -> None:
        super().__init__(server, daemon, None)

    async def owners(self) -> tuple[int, list[OwnerInQueue]]:
        """The server's time, and every daemon that has, or lately had, something in a queue."""
        queues = await self._queues()
        now_ms, found = 0, []
        for queue, (_, at_ms, owners) in (
            await self._run_each(_OWNERS, queues, OWNERS_MAX)
        ).items():
            now_ms = max(now_ms, at_ms)
            found += [OwnerInQueue(queue, *owner) for owner in owners]
        return now_ms, found

    async def claim(self, daemon: bytes, for_s: float) -> bool:
        """Whether this daemon is the one that adopts, for so long. A daemon that asks again is."""
        key, mine = self._claim_key(daemon), self._daemon.hex()

        async def claim(client: Client) -> bool:
            if await client.execute_command("SET", key, mine, "NX", "PX", millis(for_s)):
                return True
            if await client.execute_command("GET", key) != mine.encode():
                return False
            await client.execute_command("PEXPIRE", key, millis(for_s))
            return True

        return await self._server.step(claim)

    async def disclaim(self, daemon: bytes) -> None:
        key, mine = self._claim_key(daemon), self._daemon.hex()

        async def disclaim(client: Client) -> None:
            # Nobody else takes it in between, unless this step takes longer than the claim lasts.
            if await client.execute_command("GET", key) == mine.encode():
                await client.execute_command("DEL", key)

        await self._server.step(disclaim)

    def _claim_key(self, daemon: bytes) -> str:
        return f"{self._prefix}:adopts:{daemon.hex()}"

    async def left(self, queue: str, daemon: bytes, cursor: bytes) -> LeftThere:
        owner = journal_owner(daemon)
        _, is_valid, records, pairs, last = await self._run(
            _LEFT, queue, owner, cursor or b"[" + owner, LOOK_SLICES, LOOK_BYTES
        )
        runs = read_runs(pairs, self._daemon)
        entries = [unpack_entry(record) for record in records]
        return LeftThere(
            bool(is_valid),
            [entry.as_slice(runs[entry.run_key]) for entry in entries],
            [entry.token for entry in entries],
            b"(" + last if last else b"",
        )

    async def take(self, queue: str, daemon: bytes, tokens: Sequence[int]) -> int | None:
        numbers = [pack_token(token) for token in tokens]
        _, items = await self._run(_TAKE, queue, journal_owner(daemon), *numbers, shield=True)
        return None if items < 0 else int(items)

    async def mail_left(self, queue: str, daemon: bytes, first: int) -> MailLeft:
        base, removed, stored, posts = await self._run(
            _MAIL_LEFT, queue, daemon.hex(), first, MAIL_MAX, LOOK_BYTES
        )
        known = max(0, stored - first)
        return MailLeft(posts[:known], posts[known:], (base, removed + first + len(posts)))

    async def mail_stored(self, queue: str, daemon: bytes, mark: tuple[bytes, int]) -> None:
        await self._run(_MAIL_STORED, queue, daemon.hex(), *mark, shield=True)
