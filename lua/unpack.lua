-- Unpacks jobs, given their ids. A job that is not packed is left unchanged.
-- KEYS    timer_set | sorted set of buckets
-- ARGV    per job: its bucket, its field
-- returns number of jobs unpacked
-- bound   100 jobs (the caller's)
local unpacked = 0
for arg = 1, #ARGV, 2 do
  local bucket, field = ARGV[arg], ARGV[arg + 1]
  local value = call('HGET', packed_base .. bucket, field)
  if value then
    -- The first write frees memory, so that a full Redis executes the others.
    call('HDEL', packed_base .. bucket, field)
    if call('EXISTS', packed_base .. bucket) == 0 then call('ZREM', KEYS[2], bucket) end
    unpack_jobs(KEYS[1], bucket, {field, value})
    unpacked = unpacked + 1
  end
end
return unpacked
