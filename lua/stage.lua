-- Stores values of jobs that a later publish makes visible. Their ids are not known to any client yet, and values that
-- are never published expire.
-- KEYS    job keys
-- ARGV    ms until they expire, values
-- returns {now, 0}, or {now, 1}: one of the ids exists already, and nothing has changed
-- bound   64 jobs, and 1 MiB of values or one value (the caller's)
if call('EXISTS', unpack(KEYS)) > 0 then return {now, 1} end
for job = 1, #KEYS do call('SET', KEYS[job], ARGV[1 + job], 'PX', ARGV[1]) end
return {now, 0}
