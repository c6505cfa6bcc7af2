-- Forgets jobs and their timers.
-- KEYS    timer_set | job keys, at the end those whose timer members are not known
-- ARGV    of how many they are not known, exact timer members
-- returns how many jobs were there
-- bound   64 jobs (the caller's), 1,024 names of timers
local unknown, deleted = tonumber(ARGV[1]), 0
local known = #KEYS - unknown
if known > 1 then deleted = call('DEL', unpack(KEYS, 2, known)) end
for i = known + 1, #KEYS do
  if call('DEL', KEYS[i]) == 1 then
    deleted = deleted + 1
    forget_timer(KEYS[1], KEYS[i])
  end
end
if #ARGV > 1 then call('ZREM', KEYS[1], unpack(ARGV, 2)) end
return deleted
