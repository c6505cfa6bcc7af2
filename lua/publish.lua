-- Stores the jobs of several publish calls, each call as a whole or not at all; a republish also acks the job that it
-- replaces.
-- KEYS    timer_set | ready lists | job keys in publish order | keys of replaced jobs | per new queue: hash of
--         namespaces, hash of queues, their index | sorted set of buckets, if jobs may be packed
-- ARGV    #ready lists, #jobs, #replaced jobs, a sum of 1 = stage.lua has stored the values of all jobs and 2 = jobs may
--         be packed
--         per job: its call, its ready list (0 = delayed), ttl in ms (0 = forever), delay in us, list element or timer
--         member, value; the delays preserve the order of jobs of one call that are due together
--         per replaced job: its call, exact timer member ('' = unknown)
--         per new queue: its namespace, its name
--         per job that may be packed: its number, its bucket, its field, its tries, and to pack it, the end of the delay
--         in its id in us, otherwise ''. Then the number of these jobs, unless there are none
-- (An index exists once the queues of a namespace have been listed.)
-- returns {now, 0, calls refused because one of their ids exists already, or, with 1000, 2000 or 3000 added, because
--         their namespace's quota of jobs, bytes or queues is exceeded ..., if timers of replaced jobs were deleted:
--         {per timer: its job's key, its score ('' = of a running job)}}; {now, 1}: a key has the wrong type, so all
--         calls are refused and nothing has changed; {now, 2}: a staged value has expired, and nothing has changed
-- bound   64 jobs, and 1 MiB of values or one value (the caller's), 1,024 names of timers
local list_count, job_count, replaced_count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local staged, buckets, may_be_packed = ARGV[4] == '1' or ARGV[4] == '3', nil, nil
if ARGV[4] >= '2' then
  local PACKED = 5
  buckets, may_be_packed = table.remove(KEYS), {}
  for arg = #ARGV - PACKED * ARGV[#ARGV], #ARGV - 1, PACKED do may_be_packed[tonumber(ARGV[arg])] = arg end
end
local before_jobs, refused, answer = 1 + list_count, {}, {now, 0}

-- Look before the first write.
local job_keys = {}
for job = 1, job_count do job_keys[job] = KEYS[before_jobs + job] end
local stored = call('EXISTS', unpack(job_keys))
if staged then
  if stored < job_count then return {now, 2} end
elseif stored > 0 then
  for job = 1, job_count do
    local caller = ARGV[6 * job - 1]
    if not refused[caller] and call('EXISTS', job_keys[job]) == 1 then
      refused[caller] = true
      answer[#answer + 1] = tonumber(caller)
    end
  end
end

-- Ids of packed jobs. Such a hash, or the set of buckets, may have the wrong type: an error before the first write.
if buckets then
  call('ZCARD', buckets)
  for job, arg in pairs(may_be_packed) do
    local caller = ARGV[6 * job - 1]
    if call('HEXISTS', packed_base .. ARGV[arg + 1], ARGV[arg + 2]) == 1 and not refused[caller] then
      refused[caller] = true
      answer[#answer + 1] = tonumber(caller)
    end
  end
end

if quotas then
  local calls, order = {}, {}
  for job = 1, job_count do
    local arg = 6 * job - 1
    local of = calls[ARGV[arg]] or {keys = {}, sizes = {}, gone = {}}
    if not refused[ARGV[arg]] and #of.keys == 0 then calls[ARGV[arg]] = of; order[#order + 1] = ARGV[arg] end
    of.keys[#of.keys + 1] = job_keys[job]
    of.sizes[#of.keys] = not staged and #ARGV[arg + 5] or nil
  end
  for replaced = 1, replaced_count do
    local of = calls[ARGV[3 + 6 * job_count + 2 * replaced]]
    if of then of.gone[#of.gone + 1] = KEYS[before_jobs + job_count + replaced] end
  end
  for _, caller in ipairs(order) do
    local of = calls[caller]
    local used_up = quotas.admit(of.keys, of.sizes, of.gone, staged and of.keys or {})
    if used_up then
      refused[caller] = true
      answer[#answer + 1] = tonumber(caller) + 1000 * used_up
      if staged then call('UNLINK', unpack(of.keys)) end
    end
  end
end

-- The first write is a SET: a full Redis refuses it, and with it the whole call. Later writes are not refused for lack
-- of memory. (Staged values already have their memory.)
local elements_of, timers, timers_size, packed = {}, {}, 0, buckets and {}
-- Whether to pack a job. The bucket has jobs that are due at about the time in their ids.
local packs = buckets and function(job, delay)
  local arg = may_be_packed[job]
  if not arg or ARGV[arg + 4] == '' then return false end
  local later = now + delay - ARGV[arg + 4]
  if math.abs(later) > 30000000 then return false end
  packed[#packed + 1] = {job = job, arg = arg, later = later + (now + delay) % 2}
  return true
end
for job = 1, job_count do
  local arg = 6 * job - 1
  if not refused[ARGV[arg]] and not (packs and packs(job, ARGV[arg + 3])) then
    if staged then
      if ARGV[arg + 2] == '0' then call('PERSIST', job_keys[job])
      else call('PEXPIRE', job_keys[job], ARGV[arg + 2]) end
    elseif ARGV[arg + 2] == '0' then call('SET', job_keys[job], ARGV[arg + 5])
    else call('SET', job_keys[job], ARGV[arg + 5], 'PX', ARGV[arg + 2]) end
    local list = tonumber(ARGV[arg + 1])
    if list == 0 then
      -- Even (see details.lua).
      local due = now + ARGV[arg + 3]
      timers[timers_size + 1] = score(due + due % 2)
      timers[timers_size + 2] = ARGV[arg + 4]
      timers_size = timers_size + 2
    else
      local elements = elements_of[list]
      if not elements then elements = {}; elements_of[list] = elements end
      elements[#elements + 1] = ARGV[arg + 4]
    end
  end
end
local failed = false
if timers_size > 0 then failed = redis.pcall('ZADD', KEYS[1], unpack(timers)) end
failed = type(failed) == 'table'
local pushed = 0
for list = 1, failed and 0 or list_count do
  if elements_of[list] then
    if type(redis.pcall('LPUSH', KEYS[1 + list], unpack(elements_of[list]))) == 'table' then failed = true; break end
  end
  pushed = list
end
if failed then
  -- A key has the wrong type. Undo everything: a publish happens as a whole or not at all.
  for list = 1, pushed do
    if elements_of[list] then call('LPOP', KEYS[1 + list], #elements_of[list]) end
  end
  for member = 2, timers_size, 2 do redis.pcall('ZREM', KEYS[1], timers[member]) end
  for job = 1, job_count do
    if not refused[ARGV[6 * job - 1]] then call('DEL', job_keys[job]) end
  end
  return {now, 1}
end

if packed and #packed > 0 then
  local scores = {}
  for _, of in ipairs(packed) do
    local arg, ttl, delay = of.arg, tonumber(ARGV[6 * of.job + 1]), tonumber(ARGV[6 * of.job + 2])
    local due = now + delay + (now + delay) % 2
    local rest = ttl == 0 and 0 or math.floor(now / 1000) + ttl - math.floor(due / 1000)
    local head = struct.pack(PACKED_HEAD, tonumber(ARGV[arg + 3]), of.later, rest)
    call('HSET', packed_base .. ARGV[arg + 1], ARGV[arg + 2], head .. ARGV[6 * of.job + 4])
    scores[#scores + 1], scores[#scores + 2] = score(due), ARGV[arg + 1]
  end
  call('ZADD', buckets, 'LT', unpack(scores))
end

local arg, timers_of, gone = 5 + 6 * job_count, {}, {}
for replaced = 1, replaced_count do
  if not refused[ARGV[arg]] then
    local key = KEYS[before_jobs + job_count + replaced]
    local there = call('DEL', key) == 1
    local member = ARGV[arg + 1]
    if member ~= '' and call('ZREM', KEYS[1], member) == 1 then
      gone[#gone + 1], gone[#gone + 2] = key, ''
    elseif there then
      timers_of[#timers_of + 1] = key
    end
  end
  arg = arg + 2
end
forget_timers(KEYS[1], timers_of, gone, true)
if #gone > 0 then answer[#answer + 1] = gone end
for name = before_jobs + job_count + replaced_count + 1, #KEYS, 3 do
  redis.pcall('HSET', KEYS[name], ARGV[arg], 1)
  -- Only if the queue's publish was not refused.
  if not quotas or quotas.may_name(KEYS[name + 1], ARGV[arg + 1]) then
    redis.pcall('HSET', KEYS[name + 1], ARGV[arg + 1], 1)
    if call('EXISTS', KEYS[name + 2]) == 1 then redis.pcall('ZADD', KEYS[name + 2], 0, ARGV[arg + 1]) end
  end
  arg = arg + 2
end
return answer
