-- Decides who gets a timer at once.
-- A job that has left its state is due then, and near from then on in ms.
local function delay(job, due, near)
  job.state, job.due, job.seq = WAITING, due, nil
  local bucket = sub(job.place, 1, 3)
  local from = near > 0 and near * 1000 <= due and is_beyond(near) and (call('ZSCORE', far, bucket) or near)
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
