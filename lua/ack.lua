-- Forgets jobs and their timers.
-- KEYS    timer_set | job keys, at the end those whose timer members are not known
-- ARGV    of how many they are not known, exact timer members
-- returns how many jobs were there, if all timers whose members are known are gone, and no others; or those of all jobs,
--         which ran. Else {how many jobs were there, how many of the members that are known are gone,
--         {ns/queue, delayed, running, ...}: how many others are}
-- bound   64 jobs (the caller's), 1,024 names of timers
local known, deleted, gone, timers_of = #KEYS - ARGV[1], 0, 0, {}
if known > 1 then deleted = call('DEL', unpack(KEYS, 2, known)) end
-- Some have timers by other tries, or none.
if #ARGV > 1 then gone = call('ZREM', KEYS[1], unpack(ARGV, 2)) end
if gone < deleted then timers_of = {unpack(KEYS, 2, known)} end
for i = known + 1, #KEYS do
  if call('DEL', KEYS[i]) == 1 then
    deleted = deleted + 1
    timers_of[#timers_of + 1] = KEYS[i]
  end
end
local others, running = forget_timers(KEYS[1], timers_of)
if gone == #ARGV - 1 and (#timers_of == 0 or deleted == #KEYS - 1 and running == #timers_of) then return deleted end
return {deleted, gone, others}
