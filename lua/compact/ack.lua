-- Forgets jobs, each by itself and in whatever state. One that comes with a receipt is forgotten only if that hand-over
-- still stands.
-- KEYS    the partition's guard
-- ARGV    #queues, their names; per job: its queue, place, the receipt's due time in us ('' = none), its tries
-- returns {bytes that were forgotten, jobs of those, number of each job whose receipt does not hold any more, from 0 ...}
-- bound   100 jobs (the caller's)
local count, stale = tonumber(ARGV[1]), {0, 0}
local n = 0
for i = 2 + count, #ARGV, 4 do
  local q = queue_of(ARGV[1 + ARGV[i]])
  local job, over = find(q, ARGV[i + 1])
  local due = ARGV[i + 2] ~= '' and tonumber(ARGV[i + 2])
  if job and due and not (job.state == RUNNING and job.due == due and job.tries == tonumber(ARGV[i + 3]) and now < due) then
    stale[#stale + 1] = n
  else
    job = job or over
    if job then
      remove(job)
      stale[1], stale[2] = stale[1] + job.size, stale[2] + 1
    end
  end
  n = n + 1
end
save()
return stale
