-- Makes dead jobs ready or delayed again, by their places.
-- KEYS    the partition's guard
-- ARGV    name of the queue, tries, delay in us, from when on in ms they are near then (0 = now), ttl in ms (0 = forever),
--         places
-- returns {now, due time in us, per job: 1 = done, 0 = it is not dead, -1 = there is no such job}
-- bound   100 jobs (the caller's), 1,000 entries from either end of the dead letter for each
local q, tries, later, near = queue_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ttl, out, list = tonumber(ARGV[5]), {now, now + later}, base .. 'd' .. q.name
for i = 6, #ARGV do
  local job = find(q, ARGV[i])
  if not job then
    out[#out + 1] = -1
  elseif job.state ~= DEAD then
    out[#out + 1] = 0
  else
    -- One that is not found so near is passed over when its turn comes.
    local entry = entry_of(job, job.due)
    if call('LPOS', list, entry, 'MAXLEN', 1000) then call('LREM', list, 1, entry)
    elseif call('LPOS', list, entry, 'RANK', -1, 'MAXLEN', 1000) then call('LREM', list, -1, entry) end
    leave_state(job)
    job.tries = tries
    if ttl > 0 then
      job.ends = now_ms + ttl
      call('ZADD', ends, 'LT', job.ends, sub(job.place, 1, 3))
    end
    if later > 0 then
      -- Those that are due together are due in the order given.
      delay(job, now + later + i - 6, near)
    else
      job.state, job.due = WAITING, now
      put(job)
      call('RPUSH', base .. 'r' .. q.name, entry_of(job, now))
    end
    out[#out + 1] = 1
  end
end
save()
return out
