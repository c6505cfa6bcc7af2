-- All that is known of a job, by its place or by its key.
-- KEYS    the partition's guard
-- ARGV    name of the queue, place of the job ('' = by its key), key
-- returns {now}, and if there is such a job: place, state, due time in us, tries left, ttl left in ms (-1 = forever), key,
--         reason (each '' = none), value
-- bound   one job
local q, place = queue_of(ARGV[1]), ARGV[2]
if place == '' then place = call('GET', base .. 'k' .. q.name .. '/' .. ARGV[3]) end
local job = place and find(q, place)
if not job then return {now} end
local key, reason = details_of(job)
if ARGV[2] == '' and (job.state == DEAD or key ~= ARGV[3]) then return {now} end
return {now, place, state_of(job), job.due, job.tries, ttl_of(job), key or '', reason or '', body_of(job)}
