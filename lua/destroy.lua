-- Deletes ready jobs: the first call sets the list aside, and each call deletes some of its jobs. Meanwhile the queue's
-- name is in a set, so that any server can finish the destroy. A list that is already set aside is finished first.
-- KEYS    ready list | key of the list set aside | set of the queues that have such a list
-- ARGV    ns/queue, prefix of its job keys, 1 = still to be set aside
-- returns {1 = the ready list was set aside or empty, jobs left to delete}
-- bound   250 jobs
local moved = 0
if ARGV[3] == '1' and call('EXISTS', KEYS[2]) == 0 then
  -- LLEN fails for another type, before anything has changed.
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
  -- A full Redis refuses this until enough jobs are deleted.
  redis.pcall('SADD', KEYS[3], ARGV[1])
end
return {moved, left}
