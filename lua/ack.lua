-- Deletes jobs and their timers.
-- KEYS    timer_set | job keys, last those whose timer members are unknown
-- ARGV    number of jobs with unknown timer members, exact timer members of the others
-- returns number of jobs deleted
-- bound   64 jobs (the caller's), 1,024 names of timers
local known, deleted, timers_of = #KEYS - ARGV[1], 0, {}
if known > 1 then deleted = call('DEL', unpack(KEYS, 2, known)) end
-- Some timers have another number of tries, or do not exist.
if #ARGV > 1 and call('ZREM', KEYS[1], unpack(ARGV, 2)) < deleted then timers_of = {unpack(KEYS, 2, known)} end
for i = known + 1, #KEYS do
  if call('DEL', KEYS[i]) == 1 then
    deleted = deleted + 1
    timers_of[#timers_of + 1] = KEYS[i]
  end
end
forget_timers(KEYS[1], timers_of)
return deleted
