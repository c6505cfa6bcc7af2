-- Adds attempts to the counts of a pushed queue.
-- KEYS    the queue's counts | its attempts
-- ARGV    delivered, failed, dead, ms since the last success (-1 = none), number of attempts to
--         keep, then attempts as JSON, latest last
-- returns nothing
-- bound   the number of attempts to keep
local call = redis.call
-- The first write takes no memory, since a full Redis refuses only the first write of a script.
call('LTRIM', KEYS[2], 0, ARGV[5] - 1)
for i, name in ipairs({'delivered', 'failed', 'dead'}) do
  if ARGV[i] ~= '0' then call('HINCRBY', KEYS[1], name, ARGV[i]) end
end
if ARGV[4] ~= '-1' then
  local time = call('TIME')
  local at = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[4]
  if at > tonumber(call('HGET', KEYS[1], 'delivered_at') or 0) then
    call('HSET', KEYS[1], 'delivered_at', string.format('%.0f', at))
  end
end
for i = 6, #ARGV do call('LPUSH', KEYS[2], ARGV[i]) end
call('LTRIM', KEYS[2], 0, ARGV[5] - 1)
