-- What a list shows of jobs that are in one state.
-- KEYS    the partition's guard
-- ARGV    name of the queue, 1 = with bodies; per job: place, due time in us that it must have, state (0 waiting, 1
--         running, 2 dead, '' = 0 or 1)
-- returns {now, per job: tries left (-1 = it is not so any more), ttl left in ms (-1 = forever), key, reason (each '' =
--         none), size, value ('' = not asked for)}
-- bound   100 jobs (the caller's), of which the last may be left out; 2 MiB of values and one value more
local q, out, bytes = queue_of(ARGV[1]), {now}, 0
for i = 3, #ARGV, 3 do
  local job, k = find(q, ARGV[i]), #out
  local state = tonumber(ARGV[i + 2])
  if not job or job.due ~= tonumber(ARGV[i + 1]) or state and job.state ~= state or not state and job.state == DEAD then
    out[k + 1], out[k + 2], out[k + 3], out[k + 4], out[k + 5], out[k + 6] = -1, -1, '', '', 0, ''
  else
    local key, reason = details_of(job)
    local body = ''
    -- The size of a versioned job's body stands in its value.
    if ARGV[2] == '1' or byte(job.place, 11) % 2 == 1 then body = body_of(job) end
    bytes = bytes + #body
    out[k + 1], out[k + 2], out[k + 3], out[k + 4] = job.tries, ttl_of(job), key or '', reason or ''
    out[k + 5], out[k + 6] = job.size, body
    if bytes >= 2097152 then break end
  end
end
return out
