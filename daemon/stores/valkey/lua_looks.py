"""The scripts that look: a queue's epoch, what is here, and where it is; and the one that takes out
what is not leased."""

from typing import Final

from daemon.stores.valkey.lua_state import STATE

EPOCH: Final = (
    STATE
    + r"""
-- for a queue that is not known: an epoch, and the number from which it counts; the queue's name,
-- which goes into KEYS[8]
if epoch then
  -- A full server refuses this, and has the name.
  redis.pcall('SADD', KEYS[8], ARGV[4])
else
  call('SADD', KEYS[8], ARGV[4])
  call('HSET', STATE, 'epoch', ARGV[2], 'seq', ARGV[3])
  epoch, base = ARGV[2], sub(ARGV[2], 1, 3)
end
return answer(epoch)
"""
)

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
-- from; flow, run id; how many slices and bytes at most
local records, runs, seen, bytes = {}, {}, {}, 0
local members = call('ZRANGEBYLEX', ALL, ARGV[2], '+', 'LIMIT', 0, ARGV[5])
local last = ''
for _, member in ipairs(members) do
  last = member
  local rec = call('HGET', SLICES, sub(member, 33))
  local goes = (ARGV[3] == '' or sub(rec, 36, 43) == ARGV[3])
    and (ARGV[4] == '' or sub(rec, 10, 25) == ARGV[4])
  if goes and take_out(rec) then
    local key = sub(member, 1, 32)
    records[#records + 1] = rec
    if not seen[key] then
      seen[key] = true
      local data = call('HGET', RUNS, key)
      runs[#runs + 1], runs[#runs + 2] = key, data
      bytes = bytes + #data
    end
    drop_run(key)
    if bytes >= tonumber(ARGV[6]) then break end
  end
end
return answer(records, runs, last)
"""
)

PRESENT: Final = (
    STATE
    + r"""
-- rows: the items of each that are here, leased ones too
local found = {}
for at = 1, #ARGV[2], 16 do
  local ranges = {}
  for _, member in ipairs(slices_of(sub(ARGV[2], at, at + 15))) do
    ranges[#ranges + 1] = ranges_of(call('HGET', SLICES, sub(member, 33)))
  end
  found[#found + 1] = table.concat(ranges)
end
return {epoch or '', found}
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
  if wanted[sub(member, 17, 32)] then
    local rec = call('HGET', SLICES, sub(member, 33))
    local where = 'w'
    if call('ZSCORE', LEASES, sub(member, 33)) then
      where = 'l'
    elseif call('ZSCORE', LATER, sub(rec, 1, 60)) then
      where = 's'
    end
    found[#found + 1] = sub(member, 17, 32) .. where .. ranges_of(rec)
  end
end
return {base or '', found, members[#members] or ''}
"""
)

FLOWS: Final = (
    STATE
    + r"""
-- from, how many slices: by names, items that wait, all items, the oldest that waits
local members = call('ZRANGEBYLEX', ALL, ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local flows = {}
for _, member in ipairs(members) do
  local rec = call('HGET', SLICES, sub(member, 33))
  local items = numbers(rec)
  local enqueued, ranges = struct.unpack('>I8I2', rec, 91)
  local at = 101 + 4 * ranges
  local names = sub(rec, at + 2, at + 1 + struct.unpack('>I2', rec, at))
  local flow = flows[names]
  if not flow then
    flow = {0, 0, 0}
    flows[names] = flow
  end
  flow[2] = flow[2] + items
  if not call('ZSCORE', LEASES, sub(member, 33)) then
    flow[1] = flow[1] + items
    if flow[3] == 0 or enqueued < flow[3] then flow[3] = enqueued end
  end
end
local found = {}
for names, flow in pairs(flows) do found[#found + 1] = {names, flow[1], flow[2], flow[3]} end
return {base or '', found, members[#members] or ''}
"""
)
