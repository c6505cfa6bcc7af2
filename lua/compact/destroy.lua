-- Forgets the first ready jobs of a queue: those that were ready when the destroy began.
-- KEYS    the partition's guard
-- ARGV    name of the queue, when it began in us (0 = now), how many at most
-- returns {when it began, 1 = there may be more, jobs that were forgotten, their bytes}
-- bound   250 jobs (the caller's)
local q, began, most = queue_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if began == 0 then began = now end
if not q.number then return {began, 0, 0, 0} end
local list = base .. 'r' .. q.name
local entries = call('LRANGE', list, 0, most - 1)
local passed, gone, bytes = 0, 0, 0
for _, entry in ipairs(entries) do
  local time = unpack_of('>I7', entry)
  if time > began then break end
  passed = passed + 1
  local job, over = find(q, sub(entry, 8))
  job = job or over
  if job and job.due == time and job.state ~= DEAD then
    remove(job)
    gone, bytes = gone + 1, bytes + job.size
  end
end
if passed > 0 then call('LTRIM', list, passed, -1) end
save()
return {began, passed == most and 1 or 0, gone, bytes}
