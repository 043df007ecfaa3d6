"""Rates and breakers that a fleet keeps together, in Valkey: one small key for each destination.

All of it may be lost at any moment without harm: a rate starts again with a full bucket, a breaker
closed. Every step is one script on the server's clock. A destination's key expires when no daemon
has used it for a while. Daemons that share rates are counted here too: without the server, each of
them continues at its part of the rate.

What it cannot do: keep an order among hosts that wait for the same rate. The host that asks when
tokens are available gets them. Hosts usually ask for the same number, since they deliver the same
queues.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

import trio

from actors.fleet.breakers import FleetState
from actors.model.clock import Clock
from actors.ports.tiers import StoreUnavailable
from actors.workers.rate import Granted, Wish
from daemon.stores.valkey.server import Argument, Server, script

COUNT_S: Final = 5.0
"""How often a daemon says that it is there."""
COUNTS: Final = 6
"""A daemon that was silent for as many times is not counted any more."""

_NOW: Final = r"""
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + time[2] / 1000
end
"""

TAKE: Final = script(
    _NOW
    + r"""
-- refill, burst, at least, at most (negative: gives back), 1: on credit
local refill, burst = tonumber(ARGV[2]), tonumber(ARGV[3])
local least, most, on_credit = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local found = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = burst
if found[1] then
  tokens = math.min(burst, found[1] + math.max(0, now - found[2]) * refill / 1000)
end
-- A millionth of a second's worth is not waited for: doubles may never reach the rest.
local present = tokens + refill / 1000000
local granted, wait = 0, (least - tokens) / refill
if present >= least or on_credit then
  granted = math.max(least, math.min(most, math.floor(present)))
  tokens = math.min(burst, tokens - granted)
  wait = math.max(0, -tokens) / refill
end
-- All digits: a quota of a day may be asked for often, and gets little each time.
redis.call('HSET', KEYS[1], 'tokens', string.format('%.17g', tokens), 'at',
  string.format('%.3f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / refill * 1000) + 60000)
return {granted, string.format('%.6f', wait)}
"""
)

COUNT: Final = script(
    _NOW
    + r"""
-- the daemon, for how long it counts
redis.call('ZADD', KEYS[1], now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3])
redis.call('PEXPIRE', KEYS[1], 3600000)
return redis.call('ZCARD', KEYS[1])
"""
)

OPENED: Final = script(
    _NOW
    + r"""
-- for how long
local ends = math.max(now + ARGV[2], tonumber(redis.call('HGET', KEYS[1], 'until') or 0))
redis.call('HSET', KEYS[1], 'until', string.format('%.3f', ends), 'good', 0)
redis.call('DEL', KEYS[2])
redis.call('PEXPIRE', KEYS[1], math.ceil(ends - now) + 3600000)
return 1
"""
)

_STATE: Final = r"""
local function state()
  local ends = redis.call('HGET', KEYS[1], 'until')
  if not ends then return {1, '0'} end
  return {0, string.format('%.3f', math.max(0, ends - now))}
end
"""

STATE: Final = script(_NOW + _STATE + "return state()")

ASK: Final = script(
    _NOW
    + r"""
-- the daemon, how many in all, for how long
local found = redis.call('HMGET', KEYS[1], 'until', 'good')
if not found[1] or tonumber(found[1]) > now then return 0 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local free = ARGV[3] - found[2] - redis.call('ZCARD', KEYS[2])
for _ = 1, free do
  local number = redis.call('HINCRBY', KEYS[1], 'trials', 1)
  redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[2] .. ':' .. number)
end
redis.call('PEXPIRE', KEYS[1], 3600000)
redis.call('PEXPIRE', KEYS[2], 3600000)
return math.max(0, free)
"""
)

TRIED: Final = script(
    _NOW
    + _STATE
    + r"""
-- the daemon, whether it was good, how many must be, for how long it is open if not
if redis.call('EXISTS', KEYS[1]) == 0 then return state() end
if ARGV[3] == '0' then
  redis.call('HSET', KEYS[1], 'until', string.format('%.3f', now + ARGV[5]), 'good', 0)
  redis.call('DEL', KEYS[2])
  redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[5])) + 3600000)
  return state()
end
for _, trial in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  if string.sub(trial, 1, #ARGV[2]) == ARGV[2] then
    -- Only one that was given, and not given to others since, counts.
    redis.call('ZREM', KEYS[2], trial)
    if redis.call('HINCRBY', KEYS[1], 'good', 1) >= tonumber(ARGV[4]) then
      redis.call('DEL', KEYS[1], KEYS[2])
    end
    break
  end
end
return state()
"""
)


class SharedRate:
    """A token bucket for each destination and unit, and how many daemons share them.

    `now_ms` stands for the server's clock in tests.
    """

    def __init__(self, server: Server, daemon: bytes, now_ms: Clock | None = None) -> None:
        self._server = server
        self._daemon = daemon.hex()
        self._now_ms = now_ms
        self._counts: deque[int] = deque([1], maxlen=COUNTS)

    @property
    def daemons(self) -> int:
        # The highest of the last counts: a server that has lost its memory counts from 1 again.
        return max(self._counts)

    async def run(self) -> None:
        while True:
            with suppress(StoreUnavailable):
                await self.count()
            await trio.sleep(COUNT_S)

    async def count(self) -> None:
        """Tells the server that this daemon is there, and counts those that have done so."""
        key = f"{self._server.settings.prefix}:daemons"
        found = await self._server.run(
            COUNT, [key], (_time(self._now_ms), self._daemon, COUNTS * COUNT_S * 1000)
        )
        self._counts.append(int(found))

    async def take(self, bucket: str, wish: Wish) -> Granted:
        key, _ = _keys(self._server, bucket, "rate")
        granted, wait_s = await self._server.run(
            TAKE, [key], (_time(self._now_ms), *wish[:4], int(wish.on_credit))
        )
        return Granted(int(granted), float(wait_s))


class SharedBreaker:
    """The breaker of each destination (actors/fleet/breakers.py)."""

    def __init__(self, server: Server, daemon: bytes, now_ms: Clock | None = None) -> None:
        self._server = server
        self._daemon = daemon.hex()
        self._now_ms = now_ms

    async def opened(self, destination: str, left_s: float) -> None:
        await self._server.run(OPENED, self._keys(destination), (self._time(), left_s * 1000))

    async def states(self, destinations: Sequence[str]) -> Mapping[str, FleetState]:
        now = self._time()
        calls = [(self._keys(destination), (now,)) for destination in destinations]
        found = await self._server.run_each(STATE, calls)
        pairs = zip(destinations, found, strict=True)
        return {destination: _fleet_state(state) for destination, state in pairs}

    async def ask(self, destination: str, probes: int, hold_s: float) -> int:
        found = await self._server.run(
            ASK, self._keys(destination), (self._time(), self._daemon, probes, hold_s * 1000)
        )
        return int(found)

    async def tried(self, destination: str, *, ok: bool, probes: int, reset_s: float) -> FleetState:
        return _fleet_state(
            await self._server.run(
                TRIED,
                self._keys(destination),
                (self._time(), self._daemon, int(ok), probes, reset_s * 1000),
            )
        )

    def _keys(self, destination: str) -> list[str]:
        return _keys(self._server, destination, "breaker")

    def _time(self) -> Argument:
        return _time(self._now_ms)


def _keys(server: Server, destination: str, kind: str) -> list[str]:
    """Destinations are URLs and paths of any length, with whatever in them."""
    name = blake2b(destination.encode(), digest_size=16).hexdigest()
    tagged = f"{server.settings.prefix}:{{{kind}-{name}}}"
    return [tagged, f"{tagged}:trials"]


def _time(now_ms: Clock | None) -> Argument:
    return "" if now_ms is None else now_ms()


def _fleet_state(found: Sequence[bytes]) -> FleetState:
    is_closed, left_ms = found
    return FleetState(bool(is_closed), float(left_ms) / 1000)
