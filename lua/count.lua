-- Counts a request of a token, if its counter is below the limit. A refused request changes nothing. lmstfy's
-- servers count on the same key, refused requests too, so the counter may be above the limit.
-- KEYS    counter
-- ARGV    the limit, ms after which the counter ends, counted from its first count
-- returns when the counter ends, ms by this Redis's clock; when it was not below the limit, how many ms from now it ends,
--         below zero; 0: a full Redis has not counted it, and nothing has changed
-- bound   one key
local call, time = redis.call, redis.call('TIME')
local count = tonumber(call('GET', KEYS[1]) or 0)
-- What is no number fails at INCR, as it does for lmstfy.
local below = not count or count < tonumber(ARGV[1])
if below then
  count = redis.pcall('INCR', KEYS[1])
  if type(count) == 'table' then return string.find(count.err, 'OOM', 1, true) and 0 or count end
end
local left = call('PTTL', KEYS[1])
-- A counter without an end counts for ever: one that somebody made by hand, or PERSISTed.
if left < 0 then
  call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
if not below then return -left end
return time[1] * 1000 + math.floor(time[2] / 1000) + left
