-- Stores the quota of a namespace, or deletes it.
-- KEYS    quotas
-- ARGV    the field of the namespace, the quota ('' = delete), 1 = only if it has none
-- returns 1; 0: it has one, or none to delete, and nothing has changed
-- bound   two fields
local call = redis.call
if ARGV[2] == '' then
  if call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
elseif ARGV[3] == '1' and call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return 0
else
  call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
-- The field without a name changes with every write. It never repeats, even after the hash was lost.
local time, before = call('TIME'), tonumber(call('HGET', KEYS[1], '') or 0)
call('HSET', KEYS[1], '', string.format('%.0f', math.max(before + 1, time[1] * 1000000 + time[2])))
return 1
