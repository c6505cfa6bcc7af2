-- Tells of jobs that were found.
local function body_of(job)
  if job.large then return call('GET', base .. 'x' .. job.place .. job.q.name) or '' end
  return sub(job.value, job.body_at)
end

local function ttl_of(job) return job.ends and job.ends - now_ms or -1 end

-- Its key and its reason, false where there is none.
local function details_of(job)
  local of = job.details and call('HMGET', base .. 'h' .. job.place .. job.q.number, 'k', 'r') or {}
  return of[1] or false, of[2] or false
end

local function state_of(job)
  if job.state == DEAD then return 'dead' end
  if call('ZSCORE', timers, member_of(job)) then return job.state == RUNNING and 'running' or 'delayed' end
  local from = job.state == WAITING and call('ZSCORE', far, sub(job.place, 1, 3))
  return from and job.due >= from * 1000 and 'delayed' or 'ready'
end
