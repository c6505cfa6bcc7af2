-- Hands out ready jobs from one list of queues: takes them, passes over those that are gone, sets the ttr timers, reads.
-- KEYS    the partition's guard
-- ARGV    #queues, their names, the first is served first; '', or of a queue that is spread until when in us jobs must have
--         become ready; per run of jobs with the same ttr: how many, ttr in us
-- returns {now, 1 = there may be more jobs, {per queue that is paused: its number, until when in ms (1 = until it is
--         resumed)}, {per job: queue, place, tries left, due in us, ttl left in ms (-1 = forever), value}, number of the
--         queue that is spread and was not said to be (0 = none): it and those behind were not asked; of one that is said
--         to be: since when in us the next entry is ready (0 = there is none)}
-- bound   1000 entries taken, 2 MiB of values and one value more, 128 jobs (the caller's)
local MAX_TAKEN, MAX_BYTES, STEP, SKIP_STEP = 1000, 2097152, 32, 250
local count = tonumber(ARGV[1])
local limit, run = tonumber(ARGV[2 + count]), 3 + count
local left_in_run, wanted = tonumber(ARGV[run]), 0
for i = run, #ARGV, 2 do wanted = wanted + tonumber(ARGV[i]) end
local taken, bytes, more, handed_out, paused, jobs, set, sets = 0, 0, 0, 0, {}, {}, {}, {}
local spread_queue, head, beyond = 0, 0, false
for n = 1, count do
  local q = queue_of(ARGV[1 + n])
  local list, skipping = base .. 'r' .. q.name, false
  if q.spread and not limit then
    spread_queue = n
    break
  elseif q.pause == 1 or q.pause > now_ms then
    paused[#paused + 1] = n
    paused[#paused + 1] = q.pause
  elseif q.number then
    while wanted > 0 and more == 0 do
      local step = skipping and SKIP_STEP or math.min(wanted, STEP)
      local entries = call('LPOP', list, step)
      if not entries then break end
      taken = taken + #entries
      -- One call for each bucket: neighbours were published together, mostly.
      local values, i = {}, 1
      while i <= #entries do
        local bucket, fields, from = sub(entries[i], 8, 10), {}, i
        while i <= #entries and sub(entries[i], 8, 10) == bucket do
          fields[#fields + 1] = sub(entries[i], 11) .. q.number
          i = i + 1
        end
        if #fields == 1 then
          values[from] = call('HGET', base .. 'b' .. bucket, fields[1])
        else
          local of = call('HMGET', base .. 'b' .. bucket, unpack(fields))
          for k = 1, #fields do values[from + k - 1] = of[k] end
        end
      end
      local unused, live = {}, 0
      for i, entry in ipairs(entries) do
        local job, time = values[i] and read(values[i]), unpack_of('>I7', entry)
        beyond = beyond or limit and time > limit
        -- An entry is of the job's last way here, or of none.
        if job and job.due == time and job.state ~= DEAD and not (job.ends and job.ends <= now_ms) then
          live = live + 1
          if beyond or wanted == 0 or bytes >= MAX_BYTES then
            unused[#unused + 1] = entry
          else
            local place = sub(entry, 8)
            -- A microsecond apart, so that jobs that come back together keep their order.
            job.since, job.due, job.state, job.seq = time, now + ARGV[run + 1] + handed_out, RUNNING, nil
            job.tries, handed_out = job.tries - 1, handed_out + 1
            local body = job.large and (call('GET', base .. 'x' .. place .. q.name) or '') or sub(job.value, job.body_at)
            local bucket, k = sub(place, 1, 3), #jobs
            local pairs_of = sets[bucket] or {}
            sets[bucket] = pairs_of
            pairs_of[#pairs_of + 1] = sub(place, 4) .. q.number
            pairs_of[#pairs_of + 1] = write(job)
            set[#set + 1] = job.due
            set[#set + 1] = 'r' .. place .. q.number
            jobs[k + 1], jobs[k + 2], jobs[k + 3], jobs[k + 4] = n, place, job.tries, job.due
            jobs[k + 5], jobs[k + 6] = job.ends and job.ends - now_ms or -1, body
            q.running, q.changed, bytes = q.running + 1, true, bytes + #body
            wanted, left_in_run = wanted - 1, left_in_run - 1
            if left_in_run == 0 and wanted > 0 then
              run = run + 2
              left_in_run = tonumber(ARGV[run])
            end
          end
        end
      end
      -- More were taken than are handed out: they go back to the head, as they stood.
      for i = #unused, 1, -1 do call('LPUSH', list, unused[i]) end
      if wanted > 0 and (taken >= MAX_TAKEN or bytes >= MAX_BYTES) then more = 1 end
      if beyond or #entries < step and more == 0 then break end
      skipping = live == 0
    end
  end
  if limit and q.number then
    local first = call('LINDEX', list, 0)
    head = first and unpack_of('>I7', first) or 0
  end
  if wanted == 0 or more == 1 then break end
end
for bucket, all in pairs(sets) do call('HSET', base .. 'b' .. bucket, unpack(all)) end
if #set > 0 then call('ZADD', timers, unpack(set)) end
save()
return {now, more, paused, jobs, spread_queue, head}
