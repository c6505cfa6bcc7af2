-- Takes hand-overs back: each job is at the head of its queue, with its try restored, and ready since when it was.
-- KEYS    the partition's guard
-- ARGV    #queues, their names; per job, the last one first: its queue, place, the receipt's due time in us, its tries
-- returns how many there were
-- bound   250 jobs (the caller's)
local count, given = tonumber(ARGV[1]), 0
for i = 2 + count, #ARGV, 4 do
  local q = queue_of(ARGV[1 + ARGV[i]])
  local job = find(q, ARGV[i + 1])
  if job and is_held(job, tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])) then
    leave_state(job)
    job.state, job.due, job.tries = WAITING, job.since, job.tries + 1
    put(job)
    call('LPUSH', base .. 'r' .. q.name, entry_of(job, job.due))
    given = given + 1
  end
end
save()
return given
