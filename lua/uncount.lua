-- Takes one back from a counter that has not ended. A counter that has ended is not begun anew, and none goes
-- below zero: that would let more in than its limit.
-- KEYS    counter
-- returns the count
-- bound   one key
local count = tonumber(redis.call('GET', KEYS[1]) or 0)
if count <= 0 then return 0 end
return redis.call('DECR', KEYS[1])
