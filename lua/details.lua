-- Stands between lua/clock.lua and each script that knows what is kept of a job beside lmstfy's keys: its details, a
-- hash of `key` and `tries` (of a job that was published with a key) and `reason`. A list names every job with
-- details as ns/queue/id. Acks, the end of a ttl and lmstfy's servers leave details behind: who adds details to the list
-- looks at the two jobs that were looked at longest ago, and drops what is left of those that are gone.
--
-- Delayed jobs are due at even microseconds and running ones at odd ones, which tells them apart in timer_set. A
-- score of whole seconds is lmstfy's.

-- Due time in us of a score, and whether it was written for a running job.
local function read_score(text)
  local at = tonumber(text)
  local second = math.floor(at)
  local part = (at - second) * 1000000
  if part == 0 then return second * 1000000, true end
  -- Whole seconds of delayed jobs are written half a microsecond later.
  if part < 0.75 then return second * 1000000, false end
  part = math.floor(part + 0.5)
  return second * 1000000 + part, part % 2 == 1
end

-- Looks for the timer of a job with so many tries at most, by the names that it can have: 1,280 at most, so that of a
-- job with very many tries it may stay unknown. Answers the score, the tries and the member, or nothing.
local function find_timer(timer_set, prefix, id, most)
  local tail = struct.pack('<H', #id) .. id
  for _, range in ipairs({{0, 31}, {32, 1023}, {math.max(1024, most - 255), most}}) do
    local members = {}
    for tries = range[1], math.min(range[2], most) do
      members[#members + 1] = prefix .. struct.pack('<H', tries) .. tail
    end
    if #members > 0 then
      local scores = call('ZMSCORE', timer_set, unpack(members))
      for i = 1, #members do
        if scores[i] then return scores[i], range[1] + i - 1, members[i] end
      end
    end
  end
end

-- Writes details of the job `name`, ns/queue/id, and looks after older ones. `bases` are what the keys of jobs, of
-- details and of producers' keys begin with.
local function add_details(list, bases, name, ...)
  local details = bases[2] .. name
  local known = call('EXISTS', details) == 1
  call('HSET', details, ...)
  if known then return end
  call('LPUSH', list, name)
  for _ = 1, 2 do
    local old = call('RPOP', list)
    if not old then break end
    if call('EXISTS', bases[1] .. old) == 1 then
      call('LPUSH', list, old)
    else
      local key = call('HGET', bases[2] .. old, 'key')
      if key then
        local queue, id = string.match(old, '^(.*/)(.*)$')
        if call('GET', bases[3] .. queue .. key) == id then call('DEL', bases[3] .. queue .. key) end
      end
      call('UNLINK', bases[2] .. old)
    end
  end
end
