-- Decides who gets a timer at once.
-- From when on the pump has set no timers yet, in ms: what is near later stays in its bucket until then.
local horizon
local function is_beyond(near, due)
  if near == 0 or near * 1000 > due then return false end
  if not horizon then
    horizon = tonumber(call('HGET', base .. 'm', 'h') or nil)
    if not horizon then
      horizon = now_ms + 4000
      call('HSET', base .. 'm', 'h', horizon)
    end
  end
  return near >= horizon
end

-- A job that has left its state is due then, and near from then on in ms.
local function delay(job, due, near)
  job.state, job.due, job.seq = WAITING, due, nil
  local bucket = sub(job.place, 1, 3)
  local from = is_beyond(near, due) and (call('ZSCORE', far, bucket) or near)
  -- All of a bucket are near at the same time.
  if tonumber(from or nil) == near and (not job.ends or job.ends > near) then
    call('ZADD', far, near, bucket)
  else
    call('ZADD', timers, due, member_of(job))
    if job.ends then call('ZADD', ends, 'LT', job.ends, bucket) end
  end
  put(job)
  job.q.delayed, job.q.changed = job.q.delayed + 1, true
end
