-- Returns jobs whose consumer disconnected before it received them: each to the head of its queue with its try
-- restored.
-- KEYS    timer_set | ready lists | job keys
-- ARGV    #lists, and per job, ending with the one that becomes the head: list, exact timer member, its due time in us,
--         list element
-- returns per list: number of timers deleted
-- bound   250 jobs (the caller's)
local list_count, gone = tonumber(ARGV[1]), {}
for list = 1, list_count do gone[list] = 0 end
for job = 1, #KEYS - 1 - list_count do
  local arg = 4 * job - 2
  local armed = call('ZSCORE', KEYS[1], ARGV[arg + 1])
  -- The due time distinguishes this delivery from a later one with the same number of tries left.
  if armed and tonumber(armed) == tonumber(score(tonumber(ARGV[arg + 2]))) then
    -- First, since it frees memory: a full Redis would refuse a push as the first write.
    call('ZREM', KEYS[1], ARGV[arg + 1])
    local list, pushed = tonumber(ARGV[arg]), 0
    if call('EXISTS', KEYS[1 + list_count + job]) == 1 then
      pushed = redis.pcall('RPUSH', KEYS[1 + list], ARGV[arg + 3])
      -- Another program's key. The delivery stays current until its ttr ends.
      if type(pushed) == 'table' then call('ZADD', KEYS[1], armed, ARGV[arg + 1]) end
    end
    if type(pushed) == 'number' then gone[list] = gone[list] + 1 end
  end
end
return gone
