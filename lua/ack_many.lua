-- Forgets jobs of one queue; those that come with a receipt only if that hand-over still stands.
-- KEYS    timer_set | job keys
-- ARGV    per job: exact timer member ('' = not known), its due time in us ('' = no receipt)
-- returns {{which jobs are there and were not forgotten, counted from 0}, how many timers of delayed jobs are gone, and how
--         many of running ones}
-- bound   100 jobs (the caller's), 1,024 names of timers
local stale, timers_of, running = {}, {}, 0
for job = 1, #KEYS - 1 do
  local key, member, due = KEYS[1 + job], ARGV[2 * job - 1], tonumber(ARGV[2 * job])
  local armed = due and due > now and call('ZSCORE', KEYS[1], member)
  if not due or armed and tonumber(armed) == tonumber(score(due)) then
    local there = call('DEL', key) == 1
    local gone = member ~= '' and call('ZREM', KEYS[1], member) or 0
    running = running + gone
    if gone == 0 and there then timers_of[#timers_of + 1] = key end
  elseif call('EXISTS', key) == 1 then
    stale[#stale + 1] = job - 1
  end
end
local others = forget_timers(KEYS[1], timers_of)
return {stale, others[2] or 0, running + (others[3] or 0)}
