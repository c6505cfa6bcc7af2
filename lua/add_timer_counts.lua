-- Adds to the recorded numbers of delayed and running jobs; or corrects them after a count of all timers.
-- KEYS    hash of these numbers | to correct them: the server that counts
-- ARGV    to correct them: that server, ms when the count began ('' = more calls follow), ms when the count last saw
--         lmstfy ('' = never); per number: its field, its change
-- returns 1; 0: another server's turn
-- bound   512 numbers (the caller's)
local first = 1
if KEYS[2] then
  if call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
  first = 4
end
-- Deletes a field that does not exist, because a full Redis refuses HINCRBY as the first write.
call('HDEL', KEYS[1], '')
for arg = first, #ARGV, 2 do
  if call('HINCRBY', KEYS[1], ARGV[arg], ARGV[arg + 1]) == 0 then call('HDEL', KEYS[1], ARGV[arg]) end
end
if first == 4 and ARGV[2] ~= '' then
  call('HSET', KEYS[1], 'counted', ARGV[2])
  if ARGV[3] ~= '' then call('HSET', KEYS[1], 'lmstfy', ARGV[3]) end
  call('DEL', KEYS[2])
end
return 1
