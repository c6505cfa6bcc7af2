-- Corrects what is written down by what a count of all keys has found.
-- KEYS    what lua/quotas.lua keeps | who counts
-- ARGV    who calls, per namespace: its name, by how much its jobs and its bytes are to be changed
-- returns 1; 0: it was somebody else's turn
-- bound   250 namespaces (the caller's)
if call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
-- There is no such field: a full Redis refuses HINCRBY as the first write, and takes this one.
call('HDEL', KEYS[1], '')
for arg = 2, #ARGV, 3 do
  if call('HEXISTS', KEYS[1], ARGV[arg]) == 1 then
    call('HINCRBY', KEYS[1], ARGV[arg] .. '/jobs', ARGV[arg + 1])
    call('HINCRBY', KEYS[1], ARGV[arg] .. '/bytes', ARGV[arg + 2])
  end
end
return 1
