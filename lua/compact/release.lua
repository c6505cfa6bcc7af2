-- The holder gives a job up: it goes back to its queue, at the head or after a delay, or dies.
-- KEYS    the partition's guard
-- ARGV    name of the queue, place of the job, the receipt's due time in us, its tries, tries left (0 = it dies), delay in
--         us, from when on in ms it is near then (0 = now), reason ('' = none)
-- returns {now, due time in us}; or in its place 0: this hand-over is over; -1: there is no such job
-- bound   one job
local q = queue_of(ARGV[1])
local job = find(q, ARGV[2])
if not job then return {now, -1} end
if not is_held(job, tonumber(ARGV[3]), tonumber(ARGV[4])) then return {now, 0} end
local tries, later, due = tonumber(ARGV[5]), tonumber(ARGV[6]), now
leave_state(job)
if ARGV[8] ~= '' then
  call('HSET', base .. 'h' .. job.place .. q.number, 'r', ARGV[8])
  job.details = true
end
job.tries = tries
if tries == 0 then
  die(job, now)
elseif later > 0 then
  due = now + later
  delay(job, due, tonumber(ARGV[7]))
else
  job.state, job.due = WAITING, job.since
  put(job)
  call('LPUSH', base .. 'r' .. q.name, entry_of(job, job.due))
end
save()
return {now, due}
