-- The ttr of a hand-over ends later or earlier.
-- KEYS    the partition's guard
-- ARGV    name of the queue, place of the job, the receipt's due time in us, its tries, ttr in us
-- returns {now, new due time in us}; or in its place 0: this hand-over is over; -1: there is no such job
-- bound   one job
local job = find(queue_of(ARGV[1]), ARGV[2])
if not job then return {now, -1} end
local due = tonumber(ARGV[3])
if not is_held(job, due, tonumber(ARGV[4])) then return {now, 0} end
job.due = now + ARGV[5]
-- Another receipt.
if job.due == due then job.due = due + 1 end
call('ZADD', timers, job.due, member_of(job))
put(job)
return {now, job.due}
