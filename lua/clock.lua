-- Precedes every script of a pool's jobs. `now` is Redis's clock in microseconds since the epoch (an exact integer:
-- below 2^53 until 2255), and `score` formats such a time as a timer_set score, unix seconds with a fraction. TIME does
-- not advance while a script runs. A score without a fraction was written by lmstfy, which truncates the fraction. So a
-- time of whole seconds is written half a microsecond later, still before the next microsecond; from 2^32 seconds on,
-- where doubles are too coarse for that, two microseconds later. The last of ARGV is a deadline by the same clock:
-- later the caller no longer waits for the reply, so the call does nothing. The script does not see this argument.
local call, now = redis.call, redis.call('TIME')
now = now[1] * 1000000 + now[2]
if now > tonumber(table.remove(ARGV)) then
  return redis.error_reply(string.format('LATE %.0f the deadline was earlier', now))
end
-- Set by lua/quotas.lua, where a namespace has a quota.
local quotas
local function score(us)
  local fraction = us % 1000000
  if fraction == 0 then fraction = us < 4294967296000000 and 0.5 or 2 end
  return string.format('%.0f.%07.0f', math.floor(us / 1000000), fraction * 10)
end
