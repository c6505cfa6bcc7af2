-- Counts a request of a token.
-- KEYS    counter
-- ARGV    ms after which it ends, counted from its first count
-- returns the count
-- bound   one key
local count = redis.call('INCR', KEYS[1])
-- lmstfy counts in two steps: killed in between it leaves a counter that never ends.
if count == 1 or redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return count
