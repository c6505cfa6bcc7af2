-- Drops what is ready: the first call sets the list aside, and each call deletes some of its jobs. The queue's
-- name is in a set meanwhile, so that any server can finish what another has begun. A list that is set aside
-- already is finished first.
-- KEYS    ready list | where it is set aside | set of the queues that have a list there
-- ARGV    ns/queue, prefix of its job keys, 1 = still to be set aside
-- returns {1 = the ready list has been set aside or was empty, how many are left to delete}
-- bound   250 jobs
local moved = 0
if ARGV[3] == '1' and call('EXISTS', KEYS[2]) == 0 then
  -- LLEN fails for what is not a list, before anything has changed.
  if call('LLEN', KEYS[1]) == 0 then return {1, 0} end
  moved = 1
  call('RENAME', KEYS[1], KEYS[2])
end
local dropped = call('RPOP', KEYS[2], 250)
if dropped then
  local keys = {}
  for i = 1, #dropped do keys[i] = ARGV[2] .. string.sub(dropped[i], 5) end
  call('UNLINK', unpack(keys))
end
local left = call('LLEN', KEYS[2])
if left == 0 then
  call('SREM', KEYS[3], ARGV[1])
else
  -- A full Redis refuses it until some of the jobs are gone.
  redis.pcall('SADD', KEYS[3], ARGV[1])
end
return {moved, left}
