-- Forgets jobs, each by itself and in whatever state. One that comes with a receipt is forgotten only if that hand-over
-- still stands.
-- KEYS    the partition's guard
-- ARGV    #queues, their names; rows of jobs of one queue in one bucket, the same job one behind the other: the queue, the
--         bucket, how many, 1 = they come with receipts; per job of a row: its tail; with receipts also the receipt's due time
--         in us ('' = none), its tries
-- returns {bytes that were forgotten, jobs of those, number of each job whose receipt does not hold any more, from 0, and
--         -1 less the number of each that is not there ...}
-- bound   100 jobs (the caller's)
local count, answer, n, bytes, forgotten = tonumber(ARGV[1]), {0, 0}, 0, 0, 0
local a, running, find, remove = 2 + count, {}, nil, nil
while a < #ARGV do
  local q, bucket, k, step = queue_of(ARGV[1 + ARGV[a]]), ARGV[a + 1], tonumber(ARGV[a + 2]), ARGV[a + 3] == '1' and 3 or 1
  a = a + 4
  local key, number, fields, gone, values, last = base .. 'b' .. bucket, q.number, {}, {}, {}, nil
  if number then
    for i = 1, k do fields[i] = ARGV[a + (i - 1) * step] .. number end
    if k == 1 then values[1] = call('HGET', key, fields[1]) else values = call('HMGET', key, unpack(fields)) end
  end
  for i = 1, k do
    local value, field = values[i], fields[i]
    if value and field ~= last then
      local due, tries = step == 3 and tonumber(ARGV[a + 3 * i - 2]), step == 3 and tonumber(ARGV[a + 3 * i - 1])
      local flags, size, is_stale = byte(value), nil, nil
      local kept = flags % 64
      if kept == RUNNING or kept == RUNNING + 4 then
        -- Most are so: they run, and nothing of them stands elsewhere but their timer. What a value is made of stands in
        -- compact/value.lua; here it is read without a table, and what goes together goes in one call.
        local at, left, ends_at = 9, 1, nil
        if flags >= 128 then left, at = unpack_of('>H', value, 9), 11
        elseif flags >= 64 then left, at = byte(value, 9), 10 end
        if kept > RUNNING then ends_at, at = unpack_of('>I6', value, at), at + 6 end
        is_stale = due and not (ends_at and ends_at <= now_ms)
          and not (now < due and unpack_of('>I7', value, 2) == due and left == tries)
        if not is_stale then
          local of = running[q] or {}
          running[q], of[#of + 1], gone[#gone + 1] = of, 'r' .. bucket .. field, field
          size = #value - at - 6
          q.jobs, q.bytes, q.changed = q.jobs - 1, q.bytes - size, true
        end
      else
        if not find then find, remove = jobs() end
        local job, over = find(q, bucket .. ARGV[a + (i - 1) * step])
        is_stale = job and due and not (job.state == RUNNING and now < due and job.due == due and job.tries == tries)
        if not is_stale then
          job = job or over
          remove(job)
          size = job.size
        end
      end
      if is_stale then answer[#answer + 1] = n else bytes, forgotten, last = bytes + size, forgotten + 1, field end
    elseif not value then
      answer[#answer + 1] = -1 - n
    end
    n = n + 1
  end
  if gone[1] then call('HDEL', key, unpack(gone)) end
  a = a + k * step
end
-- Those whose hand-over has ended have no timer any more.
for q, members in pairs(running) do q.running = q.running - call('ZREM', timers, unpack(members)) end
save()
answer[1], answer[2] = bytes, forgotten
return answer
