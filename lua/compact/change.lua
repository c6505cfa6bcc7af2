-- Changes jobs that were found.
local function put(job)
  call('HSET', base .. 'b' .. sub(job.place, 1, 3), sub(job.place, 4) .. job.q.number, write(job))
end
local function entry_of(job, time) return pack('>I7', time) .. job.place end

-- Whether this very hand-over still stands.
local function is_held(job, due, tries)
  return job.state == RUNNING and job.due == due and job.tries == tries and now < due
end

-- Nobody has its key any more, if it had one.
local function free_key(job)
  local details = job.details and base .. 'h' .. job.place .. job.q.number
  local key = details and call('HGET', details, 'k')
  if key then
    local record = base .. 'k' .. job.q.name .. '/' .. key
    if call('GET', record) == job.place then call('DEL', record) end
    call('HDEL', details, 'k')
  end
end

-- A job that has left its state dies at this time. Its key is free, and it has no end.
local function die(job, at)
  local q = job.q
  free_key(job)
  job.state, job.due, job.ends, job.seq, job.tries = DEAD, at, nil, nil, 0
  put(job)
  call('RPUSH', base .. 'd' .. q.name, entry_of(job, at))
  q.dead, q.changed = q.dead + 1, true
end
