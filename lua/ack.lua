-- Forgets jobs, and the timer members of those whose tries are known.
-- KEYS    timer_set | job keys
-- ARGV    exact timer members
-- returns how many jobs were there
-- bound   64 jobs (the caller's)
local deleted = call('DEL', unpack(KEYS, 2))
if #ARGV > 0 then call('ZREM', KEYS[1], unpack(ARGV)) end
return deleted
