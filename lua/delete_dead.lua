-- Deletes the oldest dead jobs.
-- KEYS    dead letter
-- ARGV    prefix of its job keys, how many to take
-- returns {elements taken, jobs that were still there}
-- bound   250 (the caller's)
local dead = call('RPOP', KEYS[1], ARGV[2])
if not dead then return {0, 0} end
local keys = {}
for i = 1, #dead do keys[i] = ARGV[1] .. string.sub(dead[i], 5) end
return {#dead, call('UNLINK', unpack(keys))}
