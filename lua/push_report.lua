-- Adds attempts to the counts of a pushed queue, unless it is no longer pushed.
-- KEYS    records | the queue's counts | its attempts
-- ARGV    the field of the queue, delivered, failed, dead, ms since the last success (-1 = none), number of attempts to
--         keep, then attempts as JSON, latest last
-- returns nothing
-- bound   the number of attempts to keep
local call = redis.call
if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return end
-- The first write takes no memory, since a full Redis refuses only the first write of a script.
call('LTRIM', KEYS[3], 0, ARGV[6] - 1)
for i, name in ipairs({'delivered', 'failed', 'dead'}) do
  if ARGV[1 + i] ~= '0' then call('HINCRBY', KEYS[2], name, ARGV[1 + i]) end
end
if ARGV[5] ~= '-1' then
  local time = call('TIME')
  local at = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[5]
  if at > tonumber(call('HGET', KEYS[2], 'delivered_at') or 0) then
    call('HSET', KEYS[2], 'delivered_at', string.format('%.0f', at))
  end
end
for i = 7, #ARGV do call('LPUSH', KEYS[3], ARGV[i]) end
call('LTRIM', KEYS[3], 0, ARGV[6] - 1)
