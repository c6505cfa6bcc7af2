-- Counts a request of a token, if its counter is below the limit. A refused request changes nothing. lmstfy's servers
-- count on the same key, including refused requests, so the counter may exceed the limit.
-- KEYS    counter
-- ARGV    the limit, ms from the counter's first count to its end
-- returns the counter's end in ms by Redis's clock; if it was not below the limit, the ms until its end, negated; 0: a
--         full Redis refused to count, and nothing has changed
-- bound   one key
local call, time = redis.call, redis.call('TIME')
local count = tonumber(call('GET', KEYS[1]) or 0)
-- A value that is not a number fails at INCR, as it does for lmstfy.
local below = not count or count < tonumber(ARGV[1])
if below then
  count = redis.pcall('INCR', KEYS[1])
  if type(count) == 'table' then return string.find(count.err, 'OOM', 1, true) and 0 or count end
end
local left = call('PTTL', KEYS[1])
-- A counter without an expiry would never end: it was created by hand, or PERSISTed.
if left < 0 then
  call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
if not below then return -left end
return time[1] * 1000 + math.floor(time[2] / 1000) + left
