-- Deletes jobs and their timers.
-- KEYS    timer_set | job keys, last those whose timer members are unknown
-- ARGV    number of jobs with unknown timer members, 1 = some of these may be delayed, exact timer members of the others
-- returns number of jobs deleted, if the timer of each was deleted and none may be delayed; otherwise {jobs deleted,
--         known timers deleted, {per other timer deleted: its job's key, its score ('' = of a running job)}}
-- bound   64 jobs (the caller's), 1,024 names of timers
local known, deleted, removed, timers_of, gone = #KEYS - ARGV[1], 0, 0, {}, {}
if known > 1 then deleted = call('DEL', unpack(KEYS, 2, known)) end
-- Some timers have another number of tries, or do not exist.
if #ARGV > 2 then removed = call('ZREM', KEYS[1], unpack(ARGV, 3)) end
if removed < deleted then timers_of = {unpack(KEYS, 2, known)} end
for i = known + 1, #KEYS do
  if call('DEL', KEYS[i]) == 1 then
    deleted = deleted + 1
    timers_of[#timers_of + 1] = KEYS[i]
  end
end
local exact = ARGV[2] == '1'
forget_timers(KEYS[1], timers_of, gone, exact)
if not exact and removed == #ARGV - 2 and #gone == 2 * ARGV[1] then return deleted end
return {deleted, removed, gone}
