-- Reads and writes what a bucket has of a job.
-- What a bucket has of a job.
local function read(value)
  local flags, due = unpack_of('>BI7', value)
  local job, at, seq, large = {due = due, value = value}, 9, false, false
  if flags >= 128 then
    job.tries, at, flags = unpack_of('>H', value, 9), 11, flags - 128
  elseif flags >= 64 then
    job.tries, at, flags = byte(value, 9), 10, flags - 64
  else
    job.tries = 1
  end
  if flags >= 32 then job.details, flags = true, flags - 32 end
  if flags >= 16 then large, flags = true, flags - 16 end
  if flags >= 8 then seq, flags = true, flags - 8 end
  if flags >= 4 then job.ends, at, flags = unpack_of('>I6', value, at), at + 6, flags - 4 end
  if seq then job.seq, at = unpack_of('>I4', value, at), at + 4 end
  if flags == RUNNING then job.since, at = unpack_of('>I7', value, at), at + 7 end
  if large then job.large, job.size, at = true, unpack_of('>I4', value, at), at + 4 else job.size = #value - at + 1 end
  job.state, job.body_at = flags, at
  return job
end

-- The same with what has changed.
local function write(job, body)
  local flags, tail = job.state, ''
  if job.state == RUNNING then tail = pack('>I7', job.since) end
  if job.seq then flags, tail = flags + 8, pack('>I4', job.seq) .. tail end
  if job.ends then flags, tail = flags + 4, pack('>I6', job.ends) .. tail end
  if job.tries > 255 then flags, tail = flags + 128, pack('>H', job.tries) .. tail
  elseif job.tries ~= 1 then flags, tail = flags + 64, char(job.tries) .. tail end
  if job.details then flags = flags + 32 end
  if job.large then flags, body = flags + 16, pack('>I4', job.size) end
  return pack('>BI7', flags, job.due) .. tail .. (body or sub(job.value, job.body_at))
end
