-- Takes back jobs whose consumer left before it got them: each to the head of its queue with its try restored.
-- KEYS    timer_set | ready lists | job keys
-- ARGV    #lists, and per job, the one that goes to the head last: list, exact timer member, its due time in
--         us, list element
-- returns per list how many hand-overs are over
-- bound   250 jobs (the caller's)
local list_count, over = tonumber(ARGV[1]), {}
for list = 1, list_count do over[list] = 0 end
for job = 1, #KEYS - 1 - list_count do
  local arg = 4 * job - 2
  local armed = call('ZSCORE', KEYS[1], ARGV[arg + 1])
  -- The due time tells this hand-over from a later one of the same job with as many tries left.
  if armed and tonumber(armed) == tonumber(score(tonumber(ARGV[arg + 2]))) then
    -- First, since it frees memory: a full Redis would refuse a push as the first write.
    call('ZREM', KEYS[1], ARGV[arg + 1])
    local list = tonumber(ARGV[arg])
    over[list] = over[list] + 1
    if call('EXISTS', KEYS[1 + list_count + job]) == 1 then
      local pushed = redis.pcall('RPUSH', KEYS[1 + list], ARGV[arg + 3])
      if type(pushed) == 'table' then
        -- Not a list: another program's key. The hand-over stands, and ends with its ttr.
        call('ZADD', KEYS[1], armed, ARGV[arg + 1])
        over[list] = over[list] - 1
      end
    end
  end
end
return over
