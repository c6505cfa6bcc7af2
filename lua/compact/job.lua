-- Finds jobs, and forgets them.
-- A member among the timers. Those with a sequence number stand in its order if they are due together.
local function member_of(job)
  if job.state == RUNNING then return 'r' .. job.place .. job.q.number end
  return (job.seq and 's' .. pack('>I4', job.seq) or 'd') .. job.place .. job.q.number
end

-- A job that has not ended. The second value is one that has, and whose bytes are still there.
local function find(q, place)
  local value = q.number and call('HGET', base .. 'b' .. sub(place, 1, 3), sub(place, 4) .. q.number)
  if not value then return nil end
  local job = read(value)
  job.q, job.place = q, place
  if job.ends and job.ends <= now_ms then return nil, job end
  return job
end

-- Its timer goes, if it has one, and the queue's figures follow. A waiting job without a timer is delayed if its bucket is
-- far, and has not been near yet.
local function leave_state(job)
  local q = job.q
  if job.state == DEAD then
    q.dead = q.dead - 1
  elseif call('ZREM', timers, member_of(job)) == 1 then
    if job.state == RUNNING then q.running = q.running - 1 else q.delayed = q.delayed - 1 end
  elseif job.state == WAITING then
    local from = call('ZSCORE', far, sub(job.place, 1, 3))
    if from and job.due >= from * 1000 then q.delayed = q.delayed - 1 end
  end
  q.changed = true
end

-- Forgets a job in whatever state it is. What stands of it in a list is passed over there.
local function remove(job)
  leave_state(job)
  local q, place = job.q, job.place
  q.jobs, q.bytes = q.jobs - 1, q.bytes - job.size
  call('HDEL', base .. 'b' .. sub(place, 1, 3), sub(place, 4) .. q.number)
  if job.large then call('UNLINK', base .. 'x' .. place .. q.name) end
  if job.details then
    local details = base .. 'h' .. place .. q.number
    local key = call('HGET', details, 'k')
    local record = key and base .. 'k' .. q.name .. '/' .. key
    if key and call('GET', record) == place then call('DEL', record) end
    call('DEL', details)
  end
end
