-- Ends a pause.
-- KEYS    hash of paused queues
-- ARGV    ns/queue, 1 = only if its time is over
-- returns 1 when it was paused
-- bound   two fields
local ends = call('HGET', KEYS[1], ARGV[1])
if not ends or ARGV[2] == '1' and (ends == '0' or tonumber(ends) * 1000 > now) then return 0 end
call('HDEL', KEYS[1], ARGV[1])
-- The field without a name tells that something has changed.
if call('HLEN', KEYS[1]) <= 1 then call('DEL', KEYS[1])
else call('HSET', KEYS[1], '', string.format('%.0f', now)) end
return 1
