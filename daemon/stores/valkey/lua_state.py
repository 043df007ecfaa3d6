"""What all scripts of a warm queue in Valkey begin with: its keys, its counts, its slices.

A queue is seven keys:

    state    a hash: the epoch, the counts, the number of the last slice, how often something came
             or fell
    due      a sorted set of the slices that are due; all scores are 0, the members are the order
    later    the same members by the time at which they come due
    slices   a hash: the record of every slice, leased or not, by its number
    all      a sorted set of row, run and number, by which the slices of a row are found
    runs     a hash: the bytes of every run, once, as long as a slice of it is here
    leases   a sorted set of the numbers of slices that are leased, by the end of the lease

The epoch is 16 random bytes that the queue gets when a daemon first asks for it. It is gone when
the server forgets the queue. Rows of the cold store that are here are locked under it, so an epoch
that has changed says that what was entered before is lost.

A record is text of fixed places (daemon/stores/valkey/entries.py packs it), of which the first 60
bytes are the member of `due` and `later`. It is cut here by its ranges of items, two numbers of two
bytes each: a script's numbers are doubles, and cannot hold 4,096 bits.

    1 priority, 8 first due, 16 run id, 2 first item, 8 number, 8 flow, 1 mark, 16 epoch | 16 row,
    2 items, 4 bytes of an item, 8 due, 8 enqueued, 2 ranges, ranges, names, the rest

The mark is F, or X if a lease of the slice has run out: its items may be settled already, and the
daemon that leases it next looks into the row first. It stays X until the slice leaves, because that
daemon may put the slice back without having looked.

A slice has a new number each time that it is put somewhere; the number under which it is leased
is the token of the lease, and never used again. It begins with the first three bytes of the epoch,
so that a token does not outlive a server that has forgotten everything. Each queue counts from a
random number on: tokens of two queues differ even if their epochs begin alike.

Where memory is full (`noeviction`) a server refuses commands that may need some, but none of a
script that has removed something before. So `enter` begins with a command that is refused, and
what ends, renews or puts back begins by removing nothing: a full server drains.
"""

from typing import Final

STATE: Final = r"""
local call, sub, floor = redis.call, string.sub, math.floor
local STATE, DUE, LATER, SLICES, ALL, RUNS, LEASES = unpack(KEYS)
local PREFIX = sub(STATE, 1, -6)
-- Behind everything that follows a row in `all`: a run and a number.
local LAST = string.rep('\255', 25)
local PAGE = 200
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
local NAMES = {'seq', 'items', 'bytes', 'later', 'leased', 'came', 'fell', 'waits', 'changes'}
local s, before, epoch, base, sooner = {}, {}, nil, nil, false
do
  local found = call('HMGET', STATE, 'epoch', unpack(NAMES))
  epoch = found[1]
  base = epoch and sub(epoch, 1, 3)
  for at, name in ipairs(NAMES) do
    s[name] = tonumber(found[at + 1]) or 0
    before[name] = s[name]
  end
end

-- A server that evicts keys, or an operator, may have thrown away a part of the queue. The rest is
-- of no use then: the queue is made anew, with another epoch.
do
  local runs = call('EXISTS', RUNS)
  local slices = call('HLEN', SLICES)
  if call('ZCARD', DUE) + call('ZCARD', LATER) + call('ZCARD', LEASES) ~= slices
      or call('ZCARD', ALL) ~= slices or (s.items > 0) ~= (slices > 0)
      or runs ~= (slices > 0 and 1 or 0) then
    call('DEL', STATE, DUE, LATER, SLICES, ALL, RUNS, LEASES)
    epoch, base = false, false
    for _, name in ipairs(NAMES) do s[name], before[name] = 0, 0 end
  end
end

local function next_due()
  local first = call('ZRANGE', LATER, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) or 0
end

local function save()
  local changed = {}
  for _, name in ipairs(NAMES) do
    if s[name] ~= before[name] then
      changed[#changed + 1], changed[#changed + 2] = name, s[name]
    end
  end
  if #changed > 0 then call('HSET', STATE, unpack(changed)) end
  if s.waits > now and (s.came ~= before.came or sooner)
      or s.changes > now and s.fell ~= before.fell then
    redis.pcall('PUBLISH', PREFIX .. 'news', base .. string.format('%.0f %.0f %.0f %.0f',
      s.came, s.fell, next_due(), now))
  end
end

local function answer(...)
  save()
  return {base or '', {now, s.came, s.fell, s.items, s.bytes, s.later, s.leased}, ...}
end

local function run_key(rec)
  return sub(rec, 61, 76) .. sub(rec, 10, 25)
end

local function numbers(rec)
  local items, each, due = struct.unpack('>I2I4I8', rec, 77)
  return items, each, due
end

local function ranges_of(rec)
  return sub(rec, 101, 100 + 4 * struct.unpack('>I2', rec, 99))
end

local function make(rec, items, ranges)
  local old = struct.unpack('>I2', rec, 99)
  return sub(rec, 1, 25) .. sub(ranges, 1, 2) .. sub(rec, 28, 76) .. struct.pack('>I2', items)
    .. sub(rec, 79, 98) .. struct.pack('>I2', #ranges / 4) .. ranges .. sub(rec, 101 + 4 * old)
end

-- The first items of a record, fewer than it has, and the rest.
local function cut(rec, room)
  local items, stop = numbers(rec), 100 + 4 * struct.unpack('>I2', rec, 99)
  local at, left = 101, room
  while true do
    local first, last = struct.unpack('>I2I2', rec, at)
    if last - first >= left then
      local ends = first + left
      local rest = sub(rec, at + 4, stop)
      if ends < last then rest = struct.pack('>I2I2', ends, last) .. rest end
      return make(rec, room, sub(rec, 101, at - 1) .. struct.pack('>I2I2', first, ends)),
        make(rec, items - room, rest)
    end
    left = left - (last - first)
    at = at + 4
  end
end

local function mark(rec, marks)
  for at = 101, 97 + 4 * struct.unpack('>I2', rec, 99), 4 do
    local first, last = struct.unpack('>I2I2', rec, at)
    for item = first, last - 1 do marks[item] = true end
  end
  return marks
end

-- A record without the items that are marked; nil if nothing is left.
local function without(rec, marks)
  local ranges, items, from, ends = {}, 0, nil, nil
  for at = 101, 97 + 4 * struct.unpack('>I2', rec, 99), 4 do
    local first, last = struct.unpack('>I2I2', rec, at)
    for item = first, last - 1 do
      if not marks[item] then
        items = items + 1
        if ends ~= item then
          if from then ranges[#ranges + 1] = struct.pack('>I2I2', from, ends) end
          from = item
        end
        ends = item + 1
      end
    end
  end
  if items == 0 then return nil end
  ranges[#ranges + 1] = struct.pack('>I2I2', from, ends)
  return make(rec, items, table.concat(ranges))
end

local function count(rec, sign)
  local items, each = numbers(rec)
  s.items = s.items + sign * items
  s.bytes = s.bytes + sign * items * each
end

-- Gives a record a new number. Nothing is counted.
local function store(rec)
  s.seq = s.seq + 1
  local high = floor(s.seq / 4294967296)
  local number = base .. struct.pack('>I1I4', high, s.seq - high * 4294967296)
  rec = sub(rec, 1, 27) .. number .. sub(rec, 36)
  call('HSET', SLICES, number, rec)
  call('ZADD', ALL, 0, run_key(rec) .. number)
  return rec
end

-- Puts a record that is counted, and not leased, where it belongs.
local function place(rec)
  local items, _, due = numbers(rec)
  rec = store(rec)
  local member = sub(rec, 1, 60)
  if due <= now then
    call('ZADD', DUE, 0, member)
    s.came = s.came + 1
  else
    call('ZADD', LATER, due, member)
    s.later = s.later + items
    if s.waits > now and next_due() == due then sooner = true end
  end
end

local function forget(rec)
  call('HDEL', SLICES, sub(rec, 28, 35))
  call('ZREM', ALL, run_key(rec) .. sub(rec, 28, 35))
end

-- The slices of a row, or of a row's run.
local function slices_of(key, ...)
  return call('ZRANGEBYLEX', ALL, '[' .. key, '[' .. key .. LAST, ...)
end

-- The bytes of a run go with its last slice.
local function drop_run(key)
  if #slices_of(key, 'LIMIT', 0, 1) == 0 then call('HDEL', RUNS, key) end
end

-- The record that is leased under a number. A replica that has become the primary, and lacks the
-- last moments, gives numbers once more: what was leased under one of them before is not what is
-- leased under it now.
local function leased_as(number, what)
  if not call('ZSCORE', LEASES, number) then return false end
  local rec = call('HGET', SLICES, number)
  return rec and (what == '' or what == sub(rec, 10, 27) .. sub(rec, 77, 78)) and rec
end

-- Takes a record out that is not leased. False: it is.
local function take_out(rec)
  local member = sub(rec, 1, 60)
  if call('ZREM', DUE, member) == 0 then
    if call('ZREM', LATER, member) == 0 then return false end
    s.later = s.later - numbers(rec)
  end
  forget(rec)
  count(rec, -1)
  s.fell = s.fell + 1
  return true
end

local function bring_due()
  if s.later == 0 then return end
  while true do
    local members = call('ZRANGEBYSCORE', LATER, '-inf', now, 'LIMIT', 0, PAGE)
    if #members == 0 then return end
    call('ZREM', LATER, unpack(members))
    local pairs_, found = {}, {}
    for at, member in ipairs(members) do
      pairs_[2 * at - 1], pairs_[2 * at] = 0, member
      found[at] = sub(member, 28, 35)
    end
    call('ZADD', DUE, unpack(pairs_))
    for _, rec in ipairs(call('HMGET', SLICES, unpack(found))) do
      s.later = s.later - numbers(rec)
    end
    s.came = s.came + #members
  end
end
"""
