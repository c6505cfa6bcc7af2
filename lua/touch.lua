-- Changes the end of the current delivery's ttr, to later or earlier.
-- KEYS    timer_set | job key
-- ARGV    exact timer member, its due time in us, the new ttr in us
-- returns {now, end of the ttr in us}; instead 0: the delivery has ended, -1: no such job
-- bound   one job
if call('EXISTS', KEYS[2]) == 0 then return {now, -1} end
local due, armed = tonumber(ARGV[2]), call('ZSCORE', KEYS[1], ARGV[1])
if due <= now or not armed or tonumber(armed) ~= tonumber(score(due)) then return {now, 0} end
local later = now + ARGV[3]
later = later + 1 - later % 2
if later == due then later = later + 2 end
-- First, since it frees memory: a full Redis would refuse ZADD as the first write.
call('ZREM', KEYS[1], ARGV[1])
call('ZADD', KEYS[1], score(later), ARGV[1])
return {now, later}
