-- Changes the record of a pushed queue, if it is still the one that the caller has read.
-- KEYS    records | the queue's counts | its attempts
-- ARGV    the field of the queue, the record that was read ('' = none), the new record ('' = none)
-- returns 1; 0: it is another one by now, and nothing has changed
-- bound   one record, and one queue's counts and attempts. What its servers hold stands: requests may be in flight
local call = redis.call
if (call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
-- First a write that takes no memory, so that a Redis that is full takes the change: it refuses only the first write of a
-- script. A record where there was none needs memory, and is refused.
if ARGV[2] ~= '' then call('HDEL', KEYS[1], ARGV[1]) end
-- The field without a name tells that something has changed. It never repeats, also after the hash was lost.
local time, before = call('TIME'), tonumber(call('HGET', KEYS[1], '') or 0)
call('HSET', KEYS[1], '', string.format('%.0f', math.max(before + 1, time[1] * 1000000 + time[2])))
if ARGV[3] == '' then
  call('DEL', KEYS[2], KEYS[3])
else
  call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
