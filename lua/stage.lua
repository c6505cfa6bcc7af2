-- Stores values of jobs that a publish makes visible in a later call. Nobody knows their ids yet, and values that no
-- publish follows end by themselves.
-- KEYS    job keys
-- ARGV    ms until they end, values
-- returns {now, 0}, or {now, 1}: one of the ids is stored already, and nothing has changed
-- bound   64 jobs, and 1 MiB of values or one value (the caller's)
if call('EXISTS', unpack(KEYS)) > 0 then return {now, 1} end
for job = 1, #KEYS do call('SET', KEYS[job], ARGV[1 + job], 'PX', ARGV[1]) end
return {now, 0}
