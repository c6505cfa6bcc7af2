-- Counts a request of a token.
-- KEYS    counter
-- ARGV    ms after which it ends, counted from its first count
-- returns the count
-- bound   one key
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return n
