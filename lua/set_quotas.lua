-- Sets quotas of namespaces, or ends them.
-- KEYS    what lua/quotas.lua keeps
-- ARGV    per namespace: its name, most jobs, bytes and queues in one ('' = it has no quota any more)
-- returns how many of the namespaces are to be counted: they had no quota
-- bound   250 namespaces (the caller's)
local new = 0
-- There is no such field: a full Redis refuses HSET as the first write, and takes this one.
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
