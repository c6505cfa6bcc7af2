-- The job that the next consume would hand out. Entries of jobs that are gone, which stand before it, are dropped.
-- KEYS    the partition's guard
-- ARGV    name of the queue, 1 = with its value
-- returns {now, 1 = call again}, and if there is a job: place, since when in us it is ready, tries left, ttl left in ms
--         (-1 = forever), value ('' = not asked for)
-- bound   1000 entries
local q = queue_of(ARGV[1])
if not q.number then return {now, 0} end
local list = base .. 'r' .. q.name
local entries = call('LRANGE', list, 0, 99)
for at = 0, 900, 100 do
  for i, entry in ipairs(entries) do
    local job = find(q, sub(entry, 8))
    local time = unpack_of('>I7', entry)
    if job and job.due == time and job.state ~= DEAD then
      if at + i > 1 then call('LTRIM', list, at + i - 1, -1) end
      return {now, 0, job.place, time, job.tries, ttl_of(job), ARGV[2] == '1' and body_of(job) or ''}
    end
  end
  if #entries < 100 then
    if at + #entries > 0 then call('LTRIM', list, at + #entries, -1) end
    return {now, 0}
  end
  if at < 900 then entries = call('LRANGE', list, at + 100, at + 199) end
end
call('LTRIM', list, 1000, -1)
return {now, 1}
