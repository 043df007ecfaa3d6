"""The scripts that move slices: they enter, are leased, come back, and leave. One step each."""

from typing import Final

from daemon.stores.valkey.lua_state import STATE

ENTER: Final = (
    STATE
    + r"""
-- items, bytes, the epoch under which the rows are locked, until when, how many; records; bytes of
-- their runs
if not base or epoch ~= ARGV[4] then return {''} end
if ARGV[5] ~= '' and now > tonumber(ARGV[5]) then return {'late'} end
call('HSET', STATE, 'seq', s.seq)
local items_max, bytes_max, n = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6])
local here = {}

-- Parts of a row that are here already are not entered again: a daemon that does not know whether
-- a step was taken repeats it.
local function look(key)
  local marks = false
  for _, member in ipairs(of_run(key)) do
    marks = mark(call('HGET', SLICES, sub(member, 33)), marks or {})
  end
  return marks
end

local stopped, rest = n, ''
for at = 1, n do
  local rec = ARGV[6 + at]
  local key = run_key(rec)
  if here[key] == nil then here[key] = look(key) end
  if here[key] then rec = without(rec, here[key]) end
  if rec then
    local items, each = numbers(rec)
    local room = math.min(items_max - s.items, floor((bytes_max - s.bytes) / each))
    if room < 1 and s.items == 0 and items_max > 0 then room = 1 end
    local left
    if room < 1 then
      rec, left = nil, rec
    elseif room < items then
      rec, left = cut(rec, room)
    end
    if rec then
      if ARGV[6 + n + at] ~= '' then call('HSETNX', RUNS, key, ARGV[6 + n + at]) end
      count(rec, 1)
      place(rec)
    end
    if left then
      stopped, rest = at - 1, sub(left, 101, 100 + 4 * struct.unpack('>I2', left, 99))
      break
    end
  end
end
bring_due()
return answer(stopped, rest)
"""
)

LEASE: Final = (
    STATE
    + r"""
-- items, bytes, how long, flows that are left out, runs whose bytes the caller has
bring_due()
local items_left, bytes_left, ends = tonumber(ARGV[2]), tonumber(ARGV[3]), now + ARGV[4]
local left_out, known = {}, {}
for at = 1, #ARGV[5], 8 do left_out[sub(ARGV[5], at, at + 7)] = true end
for at = 1, #ARGV[6], 32 do known[sub(ARGV[6], at, at + 31)] = true end
local taken, runs, from, page = {}, {}, '-', 16

local function lease(rec, items)
  call('ZADD', LEASES, ends, sub(rec, 28, 35))
  s.leased = s.leased + items
  taken[#taken + 1] = rec
  local key = run_key(rec)
  if not known[key] then
    known[key] = true
    runs[#runs + 1], runs[#runs + 2] = key, call('HGET', RUNS, key)
  end
end

-- False: it was the last one that is leased now.
local function take(member)
  local rec = call('HGET', SLICES, sub(member, 28, 35))
  local items, each = numbers(rec)
  local room = math.min(items_left, floor(bytes_left / each))
  if room < 1 then
    if #taken > 0 then return false end
    room = 1
  end
  call('ZREM', DUE, member)
  if items > room then
    local rest
    rec, rest = cut(rec, room)
    call('HSET', SLICES, sub(rest, 28, 35), rest)
    call('ZADD', DUE, 0, sub(rest, 1, 60))
    lease(store(rec), room)
    return false
  end
  lease(rec, items)
  items_left, bytes_left = items_left - items, bytes_left - items * each
  return true
end

local goes_on = true
while goes_on do
  local members = call('ZRANGEBYLEX', DUE, from, '+', 'LIMIT', 0, page)
  for _, member in ipairs(members) do
    if not left_out[sub(member, 36, 43)] and not take(member) then
      goes_on = false
      break
    end
  end
  if #members < page then break end
  from, page = '(' .. members[#members], PAGE
end
return answer(taken, runs)
"""
)

END: Final = (
    STATE
    + r"""
-- how many; for each of them: number, what was leased under it, how many come again, their records
call('ZREM', LEASES, '')
local at, endings = 3, {}

-- A replica that has become the primary, and lacks the last moments, gives numbers once more. What
-- was leased under one of them before is not what is leased under it now.
local function leased_as(ending)
  local rec = call('HGET', SLICES, ending.number)
  return rec and (ending.what == '' or ending.what == sub(rec, 10, 27) .. sub(rec, 77, 78)) and rec
end

for k = 1, tonumber(ARGV[2]) do
  local ending = {number = ARGV[at], what = ARGV[at + 1], again = {}}
  for more = 1, tonumber(ARGV[at + 2]) do ending.again[more] = ARGV[at + 2 + more] end
  at = at + 3 + #ending.again
  endings[k] = ending
  local rec = #ending.again > 0 and call('ZSCORE', LEASES, ending.number) and leased_as(ending)
  if rec then
    local free = mark(rec, {})
    for _, again in ipairs(ending.again) do
      if sub(again, 10, 25) ~= sub(rec, 10, 25) then
        return {'', 'a slice of another run is put back'}
      end
      for item in pairs(mark(again, {})) do
        if not free[item] then
          return {'', 'items that are put back must have been leased, each once'}
        end
        free[item] = nil
      end
    end
  end
end

local ended, items_before = {}, s.items
for k, ending in ipairs(endings) do
  local rec = leased_as(ending)
  ended[k] = rec and call('ZREM', LEASES, ending.number) or 0
  if ended[k] == 1 then
    s.leased = s.leased - numbers(rec)
    forget(rec)
    count(rec, -1)
    for _, again in ipairs(ending.again) do
      again = sub(rec, 1, 25) .. sub(again, 26, 27) .. sub(rec, 28, 76) .. sub(again, 77, 78)
        .. sub(rec, 79, 82) .. sub(again, 83)
      count(again, 1)
      place(again)
    end
    drop_run(run_key(rec))
  end
end
if s.items < items_before then s.fell = s.fell + 1 end
return answer(ended)
"""
)

EXTEND: Final = (
    STATE
    + r"""
-- how long; numbers
call('ZREM', LEASES, '')
local extended = {}
for at = 3, #ARGV do
  local is_known = call('ZSCORE', LEASES, ARGV[at])
  if is_known then call('ZADD', LEASES, now + ARGV[2], ARGV[at]) end
  extended[at - 2] = is_known and 1 or 0
end
return {base or '', extended}
"""
)

EXPIRE: Final = (
    STATE
    + r"""
-- how many at most
call('ZREM', LEASES, '')
local late = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, ARGV[2])
if #late == 0 then return {base or '', 0, 0} end
call('ZREM', LEASES, unpack(late))
local put_back = 0
for _, rec in ipairs(call('HMGET', SLICES, unpack(late))) do
  local items = numbers(rec)
  put_back = put_back + items
  s.leased = s.leased - items
  forget(rec)
  place(sub(rec, 1, 43) .. 'X' .. sub(rec, 45))
end
save()
return {base, put_back, #late}
"""
)
