-- Reads the fields of jobs that lists show.
-- KEYS    per job: its key, its details
-- ARGV    per job: 1 = its value too
-- returns {now, per job: ttl left in ms (-1 = forever, -2 = no such job), bytes of its value, key, reason, value or
--         nil}; fewer jobs than requested if their values are large
-- bound   100 jobs (the caller's), 2 MiB of values and one value more
local jobs, bytes = {now}, 0
for job = 1, #ARGV do
  if bytes >= 2097152 then break end
  local key, n = KEYS[2 * job - 1], 5 * job - 3
  jobs[n], jobs[n + 1] = call('PTTL', key), call('STRLEN', key)
  jobs[n + 2], jobs[n + 3] = key_of(key, KEYS[2 * job]), call('HGET', KEYS[2 * job], 'reason')
  jobs[n + 4] = ARGV[job] == '1' and call('GET', key)
  if jobs[n + 4] then bytes = bytes + #jobs[n + 4] end
end
return jobs
