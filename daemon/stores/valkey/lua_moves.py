"""The scripts that move slices: they enter, are leased, come back, and leave. One step each."""

from typing import Final

from daemon.stores.valkey.lua_state import STATE

ENTER: Final = (
    STATE
    + r"""
-- items, bytes, the epoch under which the rows are locked, until when, how many; records; bytes of
-- their runs
if epoch ~= ARGV[4] then return {'', 'the queue has another epoch than the rows'} end
if ARGV[5] ~= '' and now > tonumber(ARGV[5]) then return {'', 'the rows come too late'} end
call('HSET', STATE, 'seq', s.seq)
local items_max, bytes_max, n = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6])
local here = {}

-- Parts of a row that are here already are not entered again: a daemon that does not know whether
-- a step was taken repeats it.
local function look(key)
  local marks = false
  for _, member in ipairs(slices_of(key)) do
    marks = mark(call('HGET', SLICES, sub(member, 33)), marks or {})
  end
  return marks
end

-- Where something did not fit, nothing enters any more. The rest of the batch is looked at all the
-- same: what is left of it is entered elsewhere, and must not be here.
local is_full, rest = false, {}
for at = 1, n do
  local rec = ARGV[6 + at]
  local key = run_key(rec)
  if here[key] == nil then here[key] = look(key) end
  if here[key] then rec = without(rec, here[key]) end
  if rec then
    local items, each = numbers(rec)
    local room, left = 0, nil
    if not is_full then
      room = math.min(items_max - s.items, floor((bytes_max - s.bytes) / each))
      if room < 1 and s.items == 0 and items_max > 0 then room = 1 end
    end
    if room < 1 then
      rec, left = nil, rec
    elseif room < items then
      rec, left = cut(rec, room)
    end
    if rec then
      if ARGV[6 + n + at] ~= '' then call('HSETNX', RUNS, key, ARGV[6 + n + at]) end
      count(rec, 1)
      place(rec)
      -- The next slice of this row, if the batch has one, looks again.
      here[key] = here[key] and mark(rec, here[key]) or nil
    end
    if left then
      is_full = true
      rest[#rest + 1], rest[#rest + 2] = at - 1, ranges_of(left)
    end
  end
end
bring_due()
return answer(rest)
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

for k = 1, tonumber(ARGV[2]) do
  local ending = {number = ARGV[at], what = ARGV[at + 1], again = {}}
  for more = 1, tonumber(ARGV[at + 2]) do ending.again[more] = ARGV[at + 2 + more] end
  at = at + 3 + #ending.again
  endings[k] = ending
  local rec = #ending.again > 0 and leased_as(ending.number, ending.what)
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
  local rec = leased_as(ending.number, ending.what)
  ended[k] = rec and 1 or 0
  if rec then
    call('ZREM', LEASES, ending.number)
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
-- how long; by turns: number, what was leased under it
call('ZREM', LEASES, '')
local extended = {}
for at = 3, #ARGV, 2 do
  local is_leased = leased_as(ARGV[at], ARGV[at + 1])
  if is_leased then call('ZADD', LEASES, now + ARGV[2], ARGV[at]) end
  extended[#extended + 1] = is_leased and 1 or 0
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
