-- Deletes the oldest dead jobs.
-- KEYS    dead letter
-- ARGV    prefix of its job keys, how many elements to remove
-- returns {elements removed, jobs that still existed}
-- bound   250 (the caller's)
local dead = call('RPOP', KEYS[1], ARGV[2])
if not dead then return {0, 0} end
local keys = {}
for i = 1, #dead do keys[i] = ARGV[1] .. string.sub(dead[i], 5) end
return {#dead, call('UNLINK', unpack(keys))}
