-- Sets or deletes quotas of namespaces.
-- KEYS    the hash of lua/quotas.lua
-- ARGV    per namespace: its name, maximum jobs, bytes and queues in one ('' = no quota)
-- returns number of namespaces to be counted, because they had no quota
-- bound   250 namespaces (the caller's)
local new = 0
-- Deletes a field that does not exist, because a full Redis refuses HSET as the first write.
call('HDEL', KEYS[1], '')
for arg = 1, #ARGV, 2 do
  local name, most = ARGV[arg], ARGV[arg + 1]
  if most == '' then call('HDEL', KEYS[1], name, name .. '/jobs', name .. '/bytes', name .. '/elsewhere')
  elseif call('HSET', KEYS[1], name, most) == 1 then
    call('HSET', KEYS[1], name .. '/jobs', 0, name .. '/bytes', 0)
    new = new + 1
  end
end
return new
