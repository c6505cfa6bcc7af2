-- Undoes one count in the counter that ends at a given time. A newer counter is left unchanged, and no counter goes
-- below zero: either would admit more than the limit.
-- KEYS    counter
-- ARGV    the counter's end, as returned by count.lua
-- returns the count, or 0 if that counter has ended
-- bound   one key
local call, time = redis.call, redis.call('TIME')
local count = tonumber(call('GET', KEYS[1]) or 0)
if not count or count <= 0 then return 0 end
-- A counter of the next interval ends a whole interval later. Rounding makes a difference of a millisecond.
local left = call('PTTL', KEYS[1])
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + left
if math.abs(ends - tonumber(ARGV[1])) > 100 then return 0 end
-- Changes nothing, but a full Redis refuses DECR as a script's first write, and accepts this.
call('PEXPIRE', KEYS[1], left)
return call('DECR', KEYS[1])
