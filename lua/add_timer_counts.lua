-- Adds to the numbers of delayed and running jobs of queues.
-- KEYS    hash of these numbers
-- ARGV    per number: its field, by how much it changes; a number that is not above zero goes
-- returns 1
-- bound   500 numbers (the caller's)
-- There is no such field: a full Redis refuses HINCRBY as the first write, and takes this one.
call('HDEL', KEYS[1], '')
for arg = 1, #ARGV, 2 do
  if call('HINCRBY', KEYS[1], ARGV[arg], ARGV[arg + 1]) == 0 then call('HDEL', KEYS[1], ARGV[arg]) end
end
return 1
