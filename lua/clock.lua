-- Stands before every script that needs the time: `now` is the Redis's own clock in microseconds since the
-- epoch (an exact integer: below 2^53 until 2255), and `score` writes such a time as a timer_set score, unix
-- seconds with six digits. TIME stands still while a script runs.
local call, now = redis.call, redis.call('TIME')
now = now[1] * 1000000 + now[2]
local function score(us)
  return string.format('%.0f.%06.0f', math.floor(us / 1000000), us % 1000000)
end
