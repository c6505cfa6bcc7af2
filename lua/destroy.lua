-- Drops what is ready: the list is set aside in one move, and then its jobs are deleted in steps. A list that
-- a step of an earlier, unfinished call set aside is finished first.
-- KEYS    ready list | where it is set aside
-- ARGV    prefix of its job keys, 1 = still to be set aside
-- returns {1 = it has been set aside now, how many are left there}
-- bound   500 jobs
local moved = 0
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 0 then
  moved = 1
  if redis.call('EXISTS', KEYS[1]) == 0 then return {1, 0} end
  redis.call('RENAME', KEYS[1], KEYS[2])
end
local els = redis.call('RPOP', KEYS[2], 500)
if els then
  local keys = {}
  for i = 1, #els do keys[i] = ARGV[1] .. string.sub(els[i], 5) end
  redis.call('UNLINK', unpack(keys))
end
return {moved, redis.call('LLEN', KEYS[2])}
