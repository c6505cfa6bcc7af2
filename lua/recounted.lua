-- Corrects recorded usage after a count of all keys.
-- KEYS    the hash of lua/quotas.lua | the server that counts
-- ARGV    the server, per namespace: its name, correction of its jobs and of its bytes
-- returns 1; 0: another server's turn
-- bound   250 namespaces (the caller's)
if call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
-- Deletes a field that does not exist, because a full Redis refuses HINCRBY as the first write.
call('HDEL', KEYS[1], '')
for arg = 2, #ARGV, 3 do
  if call('HEXISTS', KEYS[1], ARGV[arg]) == 1 then
    call('HINCRBY', KEYS[1], ARGV[arg] .. '/jobs', ARGV[arg + 1])
    call('HINCRBY', KEYS[1], ARGV[arg] .. '/bytes', ARGV[arg + 2])
  end
end
return 1
