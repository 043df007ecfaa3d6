"""The scripts of owners and of those who look: what is here, whose it is, and until when."""

from typing import Final

from daemon.stores.valkey.lua_state import STATE

LOOK: Final = (
    STATE
    + r"""
-- who waits from now on ('waits', 'changes', or nobody), and for how long
bring_due()
if base and ARGV[2] ~= '' then redis.pcall('HSET', STATE, ARGV[2], now + ARGV[3]) end
return answer(next_due())
"""
)

WITHDRAW: Final = (
    STATE
    + r"""
-- from, to, flow, positions from, to; how many slices and bytes at most; run id
local records, runs, seen, bytes = {}, {}, {}, 0
local members = call('ZRANGEBYLEX', ALL, ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[7])
local last = ''
for _, member in ipairs(members) do
  last = member
  local rec = call('HGET', SLICES, sub(member, 50))
  local goes = (ARGV[4] == '' or sub(rec, 36, 43) == ARGV[4])
    and (ARGV[9] == '' or sub(rec, 10, 25) == ARGV[9])
  if goes and ARGV[5] ~= '' then
    local position = struct.unpack('>I8', rec, 69)
    goes = position >= tonumber(ARGV[5]) and position < tonumber(ARGV[6])
  end
  if goes and take_out(rec) then
    local key = sub(member, 1, 49)
    records[#records + 1] = rec
    if not seen[key] then
      seen[key] = true
      local data = call('HGET', RUNS, key)
      runs[#runs + 1], runs[#runs + 2] = key, data
      bytes = bytes + #data
    end
    drop_run(key)
    if bytes >= tonumber(ARGV[8]) then break end
  end
end
return answer(records, runs, last)
"""
)

PRESENT: Final = (
    STATE
    + r"""
-- from, to, how many slices or a few more: the last run as a whole
local members = call('ZRANGEBYLEX', ALL, ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
if #members > 0 then
  local last = members[#members]
  local more = call('ZRANGEBYLEX', ALL, '(' .. last, '[' .. sub(last, 1, 49) .. LAST)
  for _, member in ipairs(more) do members[#members + 1] = member end
end
local found = {}
for at, member in ipairs(members) do
  local rec = call('HGET', SLICES, sub(member, 50))
  found[at] = sub(member, 1, 49) .. (call('ZSCORE', LEASES, sub(member, 50)) and '1' or '0')
    .. sub(rec, 101, 100 + 4 * struct.unpack('>I2', rec, 99))
end
return {base or '', found}
"""
)

LOCATE: Final = (
    STATE
    + r"""
-- from, how many slices, run ids: where their items are
bring_due()
save()
local wanted, found = {}, {}
for at = 1, #ARGV[4], 16 do wanted[sub(ARGV[4], at, at + 15)] = true end
local members = call('ZRANGEBYLEX', ALL, ARGV[2], '+', 'LIMIT', 0, ARGV[3])
for _, member in ipairs(members) do
  if wanted[sub(member, 18, 33)] then
    local rec = call('HGET', SLICES, sub(member, 50))
    local where = 'w'
    if call('ZSCORE', LEASES, sub(member, 50)) then
      where = 'l'
    elseif call('ZSCORE', LATER, sub(rec, 1, 60)) then
      where = 's'
    end
    found[#found + 1] = sub(member, 18, 33) .. where
      .. sub(rec, 101, 100 + 4 * struct.unpack('>I2', rec, 99))
  end
end
return {base or '', found, members[#members] or ''}
"""
)

FLOWS: Final = (
    STATE
    + r"""
-- from, how many slices: by names, items that wait, items of cold, the oldest that waits
local members = call('ZRANGEBYLEX', ALL, ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local flows = {}
for _, member in ipairs(members) do
  local rec = call('HGET', SLICES, sub(member, 50))
  local items = numbers(rec)
  local enqueued, ranges = struct.unpack('>I8I2', rec, 91)
  local at = 101 + 4 * ranges
  local names = sub(rec, at + 2, at + 1 + struct.unpack('>I2', rec, at))
  local flow = flows[names]
  if not flow then
    flow = {0, 0, 0}
    flows[names] = flow
  end
  if sub(rec, 44, 44) == 'C' then flow[2] = flow[2] + items end
  if not call('ZSCORE', LEASES, sub(member, 50)) then
    flow[1] = flow[1] + items
    if flow[3] == 0 or enqueued < flow[3] then flow[3] = enqueued end
  end
end
local found = {}
for names, flow in pairs(flows) do found[#found + 1] = {names, flow[1], flow[2], flow[3]} end
return {base or '', found, members[#members] or ''}
"""
)

KEEP_VALID: Final = (
    STATE
    + r"""
-- how long; owners
if not base then return {''} end
call('ZREM', VALID, '')
for at = 3, #ARGV do
  if valid_until(ARGV[at]) <= now then s.came = s.came + 1 end
  call('ZADD', VALID, now + ARGV[2], ARGV[at])
end
save()
return {base}
"""
)

POSTS: Final = r"""
-- From there on, so many and so many bytes at most, or a few more: some have their items in them.
local function posts_from(daemon, first, posts_max, bytes_max)
  local posts, bytes, list = {}, 0, PREFIX .. 'mail:' .. daemon
  while #posts < posts_max and bytes < bytes_max do
    local more = call('LRANGE', list, first + #posts, first + #posts + 9)
    for _, post in ipairs(more) do
      posts[#posts + 1] = post
      bytes = bytes + #post
    end
    if #more < 10 then break end
  end
  return posts
end
"""

MAIL: Final = (
    STATE
    + POSTS
    + r"""
-- the daemon, how many and how many bytes at most
local removed = tonumber(call('HGET', STATE, 'mailed:' .. ARGV[2]) or 0)
return {base or '', removed, posts_from(ARGV[2], 0, tonumber(ARGV[3]), tonumber(ARGV[4]))}
"""
)

MAIL_DONE: Final = (
    STATE
    + r"""
-- the daemon, the base and the number removed when it was read, how many
local field = 'mailed:' .. ARGV[2]
if base ~= ARGV[3] or tonumber(call('HGET', STATE, field) or 0) ~= tonumber(ARGV[4]) then
  return 0
end
call('LTRIM', PREFIX .. 'mail:' .. ARGV[2], ARGV[5], -1)
call('HINCRBY', STATE, field, ARGV[5])
return 1
"""
)
