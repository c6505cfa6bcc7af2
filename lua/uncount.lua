-- Takes one back from the counter that ends at a given time. Another counter, which has begun since that one
-- ended, stays as it is, and none goes below zero: either would let more in than the limit.
-- KEYS    counter
-- ARGV    when the counter ends, as count.lua has returned it
-- returns the count, or 0 when that counter has ended
-- bound   one key
local call, time = redis.call, redis.call('TIME')
local count = tonumber(call('GET', KEYS[1]) or 0)
if not count or count <= 0 then return 0 end
-- A counter of the next interval ends a whole interval later. Rounding makes a difference of a millisecond.
local left = call('PTTL', KEYS[1])
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + left
if math.abs(ends - tonumber(ARGV[1])) > 100 then return 0 end
-- Changes nothing. A full Redis refuses DECR as a script's first write, and takes this one.
call('PEXPIRE', KEYS[1], left)
return call('DECR', KEYS[1])
