-- Deletes the oldest dead jobs.
-- KEYS    dead letter
-- ARGV    prefix of the job keys, how many
-- returns {elements taken, jobs that were still there}
-- bound   500 (the caller's)
local els = redis.call('RPOP', KEYS[1], ARGV[2])
if not els then return {0, 0} end
local keys = {}
for i = 1, #els do keys[i] = ARGV[1] .. string.sub(els[i], 5) end
return {#els, redis.call('UNLINK', unpack(keys))}
