-- Stores the usage of namespaces with a quota in the other partitions of a cluster, by the last sample.
-- KEYS    the hash of lua/quotas.lua
-- ARGV    per namespace: its name, jobs and bytes in one
-- returns 1
-- bound   250 namespaces (the caller's)
-- Deletes a field that does not exist, because a full Redis refuses HSET as the first write.
call('HDEL', KEYS[1], '')
for arg = 1, #ARGV, 2 do
  if call('HEXISTS', KEYS[1], ARGV[arg]) == 1 then call('HSET', KEYS[1], ARGV[arg] .. '/elsewhere', ARGV[arg + 1]) end
end
return 1
