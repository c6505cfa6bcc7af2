-- Takes one back from a counter that has not ended; a counter that has ended is not begun anew.
-- KEYS    counter
-- returns the count
-- bound   one key
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('DECR', KEYS[1])
