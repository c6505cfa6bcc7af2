-- Deletes jobs of one queue. A job with a receipt is deleted only while that delivery is current.
-- KEYS    timer_set | job keys
-- ARGV    per job: exact timer member ('' = unknown), its due time in us ('' = no receipt)
-- returns {{indexes (from 0) of existing jobs that were not deleted}, {per timer deleted: its job's key, its score ('' =
--         of a running job)}}
-- bound   100 jobs (the caller's), 1,024 names of timers
local stale, timers_of, gone = {}, {}, {}
for job = 1, #KEYS - 1 do
  local key, member, due = KEYS[1 + job], ARGV[2 * job - 1], tonumber(ARGV[2 * job])
  local armed = due and due > now and call('ZSCORE', KEYS[1], member)
  if not due or armed and tonumber(armed) == tonumber(score(due)) then
    local there = call('DEL', key) == 1
    if member ~= '' and call('ZREM', KEYS[1], member) == 1 then
      gone[#gone + 1], gone[#gone + 2] = key, ''
    elseif there then
      timers_of[#timers_of + 1] = key
    end
  elseif call('EXISTS', key) == 1 then
    stale[#stale + 1] = job - 1
  end
end
forget_timers(KEYS[1], timers_of, gone, true)
return {stale, gone}
