-- Adds to what is known of a pushed queue, unless it is no longer pushed.
-- KEYS    records | the queue's counts | its attempts
-- ARGV    the field of the queue, delivered, failed, dead, how many attempts are kept, then attempts as JSON, the
--         latest last
-- returns nothing
-- bound   as many attempts as are kept
local call = redis.call
if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return end
for i, name in ipairs({'delivered', 'failed', 'dead'}) do
  if ARGV[1 + i] ~= '0' then call('HINCRBY', KEYS[2], name, ARGV[1 + i]) end
end
for i = 6, #ARGV do call('LPUSH', KEYS[3], ARGV[i]) end
call('LTRIM', KEYS[3], 0, ARGV[5] - 1)
