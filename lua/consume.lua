-- Delivers ready jobs from a list of queues: pops, skips deleted jobs, sets the ttr timers, reads.
-- KEYS    timer_set | ready lists, in order of priority | their dead letters
-- ARGV    per ready list: prefix of its job keys, prefix of its timer members
--         per run of jobs with the same ttr: number of jobs, ttr in us; last, ms that a dead job lives (0 = forever)
-- returns {now, invalid elements dropped, 1 = there may be more jobs, {ready lists of another type}, {per job that died
--         because it had no tries left: ready list}, {per job: ready list, id, tries left, due in us, ttl left in ms
--         (-1 = forever), value}}
-- bound   1000 elements popped, 2 MiB of values and one value more, 128 jobs (the caller's)
local MAX_POPPED, MAX_BYTES, STEP, SKIP_STEP = 1000, 2097152, 32, 250
local lists = (#KEYS - 1) / 2
local run = 2 * lists + 1
local left_in_run, wanted, dead_ttl = tonumber(ARGV[run]), 0, tonumber(table.remove(ARGV))
for i = run, #ARGV, 2 do wanted = wanted + tonumber(ARGV[i]) end
local popped, bytes, garbage, more = 0, 0, 0, 0
local other_types, died, jobs, timers = {}, {}, {}, {}
-- A job that is popped and gets no timer is lost, so nothing may fail after the first pop. A timer set of another type
-- fails here, before the first pop.
call('ZCARD', KEYS[1])

for list = 1, lists do
  local ready, prefix, member = KEYS[1 + list], ARGV[2 * list - 1], ARGV[2 * list]
  local skipping = false
  while wanted > 0 and more == 0 do
    local step = skipping and SKIP_STEP or math.min(wanted, STEP)
    local elements = redis.pcall('RPOP', ready, step)
    if not elements then break end
    if elements.err then
      -- A Redis that accepts no writes refuses the first pop, before anything has changed.
      if popped == 0 and not string.find(elements.err, 'WRONGTYPE', 1, true) then return elements end
      other_types[#other_types + 1] = list
      break
    end
    popped = popped + #elements
    local keys, unused, live = {}, {}, 0
    for i = 1, #elements do keys[i] = prefix .. string.sub(elements[i], 5) end
    -- One EXISTS detects a whole run of deleted jobs.
    if not skipping or call('EXISTS', unpack(keys)) > 0 then
      for i = 1, #elements do
        local element = elements[i]
        local id = string.sub(element, 5)
        if id == '' or struct.unpack('<H', element, 3) ~= #id then
          garbage = garbage + 1
        elseif wanted == 0 or bytes >= MAX_BYTES then
          unused[#unused + 1] = element
        else
          local value = redis.pcall('GET', keys[i])
          if type(value) == 'string' then
            live = live + 1
            local tries, t = struct.unpack('<H', element), #timers
            if tries == 0 then
              -- No tries left and not acked: the job is dead.
              end_life(keys[i], dead_ttl)
              local pushed = redis.pcall('LPUSH', KEYS[1 + lists + list], struct.pack('<HH', 1, #id) .. id)
              if type(pushed) == 'table' then
                -- The dead letter has another type: the pump retries in a minute.
                timers[t + 1] = score(now + 60000000)
                timers[t + 2] = member .. struct.pack('<HH', 0, #id) .. id
              else
                died[#died + 1] = list
              end
            else
              -- Two microseconds apart, so that jobs whose ttr ends together keep their order, and odd (see
              -- details.lua).
              local due, n = now + ARGV[run + 1] + t, #jobs
              due = due + 1 - due % 2
              timers[t + 1] = score(due)
              timers[t + 2] = member .. struct.pack('<HH', tries - 1, #id) .. id
              jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4] = list, id, tries - 1, due
              jobs[n + 5], jobs[n + 6] = call('PTTL', keys[i]), value
              if tries > 1024 then
                -- See find_timer of details.lua.
                local details = base .. 'dormouse/details/' .. string.sub(keys[i], #base + 3)
                local keyed = redis.pcall('HEXISTS', details, 'tries') == 1
                if keyed then redis.pcall('HSET', details, 'tries', tries - 1) end
              end
              bytes = bytes + #value
              wanted, left_in_run = wanted - 1, left_in_run - 1
              if left_in_run == 0 and wanted > 0 then
                run = run + 2
                left_in_run = tonumber(ARGV[run])
              end
            end
          end
        end
      end
    end
    -- Return unused elements to the head, in their order.
    for i = #unused, 1, -1 do call('RPUSH', ready, unused[i]) end
    if wanted > 0 and (popped >= MAX_POPPED or bytes >= MAX_BYTES) then more = 1 end
    if #elements < step and more == 0 then break end
    skipping = live == 0
  end
end
if #timers > 0 then call('ZADD', KEYS[1], unpack(timers)) end
return {now, garbage, more, other_types, died, jobs}
