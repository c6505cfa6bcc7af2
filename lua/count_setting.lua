-- Increments a counter that is below its bound.
-- KEYS    counter
-- ARGV    the bound, ms from the counter's first count to its end
-- returns {1 = counted or 0 = not, ms until the counter ends}
-- bound   one key
local call = redis.call
local below = tonumber(call('GET', KEYS[1]) or 0) < tonumber(ARGV[1])
if below then call('INCR', KEYS[1]) end
local left = call('PTTL', KEYS[1])
if left < 0 then
  call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
return {below and 1 or 0, left}
