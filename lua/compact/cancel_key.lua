-- Forgets the job that has a key, in whatever state it is.
-- KEYS    the partition's guard
-- ARGV    name of the queue, key
-- returns {jobs that were forgotten, their bytes}
-- bound   one job
local q = queue_of(ARGV[1])
local place = call('GET', base .. 'k' .. q.name .. '/' .. ARGV[2])
local job = place and find(q, place)
if not job or job.state == DEAD or not job.details then return {0, 0} end
if call('HGET', base .. 'h' .. place .. q.number, 'k') ~= ARGV[2] then return {0, 0} end
remove(job)
save()
return {1, job.size}
