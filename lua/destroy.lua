-- Drops what is ready: the list is set aside in one move, and then its jobs are deleted in steps. Its queue
-- stands in a set meanwhile, so that any server can finish what another has begun. A list that is set aside
-- already is finished first.
-- KEYS    ready list | where it is set aside | set of the queues that have a list there
-- ARGV    ns/queue, prefix of its job keys, 1 = still to be set aside
-- returns {1 = it has been set aside now, how many are left there}
-- bound   250 jobs
local call, moved = redis.call, 0
if ARGV[3] == '1' and call('EXISTS', KEYS[2]) == 0 then
  -- LLEN fails for what is not a list, before anything has changed.
  if call('LLEN', KEYS[1]) == 0 then return {1, 0} end
  moved = 1
  call('RENAME', KEYS[1], KEYS[2])
end
local els = call('RPOP', KEYS[2], 250)
if els then
  local keys = {}
  for i = 1, #els do keys[i] = ARGV[2] .. string.sub(els[i], 5) end
  call('UNLINK', unpack(keys))
end
local left = call('LLEN', KEYS[2])
if left == 0 then
  call('SREM', KEYS[3], ARGV[1])
elseif moved == 1 then
  redis.pcall('SADD', KEYS[3], ARGV[1])
end
return {moved, left}
