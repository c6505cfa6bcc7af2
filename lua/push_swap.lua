-- Replaces the record of a pushed queue, if it is unchanged since the caller read it.
-- KEYS    records | the queue's counts | its attempts
-- ARGV    the field of the queue, the record as read ('' = none), the new record ('' = none)
-- returns 1; 0: it has changed, and so nothing is written
-- bound   one record, and one queue's counts and attempts. Leases of servers stay: requests may be in flight
local call = redis.call
if (call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
-- The first write takes no memory, since a full Redis refuses only the first write of a script. A new record needs
-- memory, and is refused.
if ARGV[2] ~= '' then call('HDEL', KEYS[1], ARGV[1]) end
-- The field without a name changes with every write. It never repeats, even after the hash was lost.
local time, before = call('TIME'), tonumber(call('HGET', KEYS[1], '') or 0)
call('HSET', KEYS[1], '', string.format('%.0f', math.max(before + 1, time[1] * 1000000 + time[2])))
if ARGV[3] == '' then
  call('DEL', KEYS[2], KEYS[3])
else
  call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
