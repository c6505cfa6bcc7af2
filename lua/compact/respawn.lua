-- Makes the oldest dead jobs ready again, each with one try; or forgets them.
-- KEYS    the partition's guard
-- ARGV    name of the queue, when it began in us (0 = now): what has died later stays; how many at most, ttl in ms (0 =
--         forever, -1 = they are forgotten), a time in us: what has died later stays this time ('' = none)
-- returns {when it began, 1 = there may be more, how many jobs, bytes of those that are forgotten}
-- bound   250 entries
local q, began, most, ttl = queue_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit = tonumber(ARGV[5]) or began
if began == 0 then began, limit = now, tonumber(ARGV[5]) or now end
if not q.number then return {began, 0, 0, 0} end
local list, passed, count, bytes, entries = base .. 'd' .. q.name, 0, 0, 0, {}
local all = call('LRANGE', list, 0, 249)
for _, entry in ipairs(all) do
  local time = unpack_of('>I7', entry)
  if time > began or time > limit or count >= most then break end
  passed = passed + 1
  local job = find(q, sub(entry, 8))
  if job and job.due == time and job.state == DEAD then
    count = count + 1
    if ttl < 0 then
      remove(job)
      bytes = bytes + job.size
    else
      leave_state(job)
      job.state, job.due, job.tries = WAITING, now, 1
      if ttl > 0 then
        job.ends = now_ms + ttl
        call('ZADD', ends, 'LT', job.ends, sub(job.place, 1, 3))
      end
      put(job)
      entries[#entries + 1] = entry_of(job, now)
    end
  end
end
if passed > 0 then call('LTRIM', list, passed, -1) end
if #entries > 0 then call('RPUSH', base .. 'r' .. q.name, unpack(entries)) end
save()
return {began, passed == 250 and 1 or 0, count, bytes}
