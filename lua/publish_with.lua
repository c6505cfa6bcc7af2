-- Stores jobs with keys, jobs that are due at an instant, and publishes that are safe to repeat: everything, or
-- nothing. A key is taken while the job that it names has the expiry that it was published with: a dead job has none, a
-- respawned one has another, and a job with a key that lives forever gets one that is very far away. So a key is free in
-- the step in which its job goes or dies, whoever does that.
-- KEYS    timer_set | list of jobs with details | ready lists | job keys | key of the job that is replaced, if there
--         is one | record of the publish, if it is safe to repeat | per new queue: hash of namespaces, hash of queues,
--         their index
-- ARGV    #ready lists, #jobs, 1 = stage.lua has stored the values of all jobs, 1 = a job is replaced, its timer
--         member ('' = not known), fingerprint ('' = not safe to repeat), ms that the record is kept, ms that are
--         forever, what the keys of jobs, of details and of producers' keys begin with
--         per ready list: ns/queue, prefix of its timer members
--         per job: its ready list, ttl in ms (0 = forever), delay in us, due time in us ('' = after the delay), tries,
--         id, value, key ('' = none), what to do when it is taken (keep, replace or fail), or what another store's
--         job that has it means: 'duplicate <id> <due time in us>' of it, or 'replaced <id> '; the delays, and the parts of
--         a millisecond of the due times, keep jobs of one call in order that would be due together
--         per new queue: its namespace, its name
-- returns {now, 'done' or 'replay', what became of the jobs}: a line for each of new|duplicate|replaced, id, due time
--         in us ('' = not known), id of the replaced job; {now, 'mismatch'}; {now, 'conflict', job from 0, id of the
--         job that has its key}; {now, 'taken'}: an id is stored already; {now, 'ended'}: a value that was stored
--         before has ended; {now, 'type'}: a key is not of the type that it must be; {now, 'set_aside', job from 0}:
--         what a destroy has set aside of its queue must be deleted first, and values that were stored before stay;
--         {now, 'quota', what is used up: 1 jobs, 2 bytes, 3 queues}. Nothing has changed but for 'done'.
-- bound   64 jobs, and 1 MiB of values or one value (the caller's); 33 timers for each queue and due time, 1,024 names of
--         timers of the job that is replaced
local list_count, job_count, staged = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local fingerprint, bases = ARGV[6], {ARGV[9], ARGV[10], ARGV[11]}
local at = 2 + list_count + job_count
local replaced_key, record
if ARGV[4] == '1' then at = at + 1; replaced_key = KEYS[at] end
if fingerprint ~= '' then at = at + 1; record = KEYS[at] end
local first_name = at + 1
local jobs, job_keys = {}, {}
for i = 1, job_count do
  local a = 11 + 2 * list_count + 9 * (i - 1)
  local list = tonumber(ARGV[a + 1])
  jobs[i] = {
    list = list, group = ARGV[10 + 2 * list], member = ARGV[11 + 2 * list], ttl = ARGV[a + 2],
    delay = tonumber(ARGV[a + 3]), at = tonumber(ARGV[a + 4]), tries = tonumber(ARGV[a + 5]), id = ARGV[a + 6],
    value = ARGV[a + 7], key = ARGV[a + 8], conflict = ARGV[a + 9],
  }
  job_keys[i] = KEYS[2 + list_count + i]
end

-- Nothing changes: values that were stored before go.
local function answer(...)
  if staged then call('UNLINK', unpack(job_keys)) end
  return {now, ...}
end

local done = record and call('GET', record)
if done then
  if string.sub(done, 1, 16) ~= fingerprint then return answer('mismatch') end
  return answer('replay', string.sub(done, 17))
end
local stored = call('EXISTS', unpack(job_keys))
if staged and stored < job_count then return answer('ended') end
if not staged and stored > 0 then return {now, 'taken'} end
for i = 1, 2 + list_count do
  local type = call('TYPE', KEYS[i]).ok
  if type ~= 'none' and type ~= (i == 1 and 'zset' or 'list') then return answer('type') end
end

-- Where a job goes that is due at an instant: behind those of its queue that are due in the same millisecond, whoever
-- published them. It shares the score of the last one if its member comes behind that one's; else it is due two
-- microseconds later. So there is room for 500 jobs out of order; more of them come by tries and id.
local begins = {}
local function place(job, tail)
  local later = job.at % 1000
  local at = job.at - later
  if at <= now then return now end
  local begin = begins[job.list] or {}
  begins[job.list] = begin
  for _, most in ipairs({1, 32}) do
    if begin[at] then break end
    local found = call('ZREVRANGEBYSCORE', KEYS[1], score(at + 998), score(at), 'LIMIT', 0, most)
    for i = 1, #found do
      local ours = string.sub(found[i], 1, #job.member) == job.member
      -- Behind 32 of other queues stands nothing of its own.
      if ours or i == 32 then
        local due = read_score(call('ZSCORE', KEYS[1], found[i]))
        begin[at] = due + 2 - due % 2
        if ours and due % 2 == 0 and less(string.sub(found[i], #job.member + 1), tail) then begin[at] = due end
        break
      end
    end
    if #found < most then begin[at] = begin[at] or at end
  end
  return math.min(begin[at] + later, at + 998)
end

-- Look at the keys before the first write.
for i = 1, job_count do
  local job = jobs[i]
  if job.key ~= '' then
    job.record = bases[3] .. job.group .. '/' .. job.key
    local how, other, due = string.match(job.conflict, '^(%a+) (%S+) (%d*)$')
    local holder = how ~= 'duplicate' and call('GET', job.record)
    job.elsewhere = other
    if how == 'duplicate' then job.how, job.due = how, tonumber(due) end
    if holder then
      job.holder = holder
      job.holder_key = bases[1] .. job.group .. '/' .. holder
      job.holder_details = bases[2] .. job.group .. '/' .. holder
      if job.holder_key ~= replaced_key and key_of(job.holder_key, job.holder_details) then
        local tries = tonumber(call('HGET', job.holder_details, 'tries') or 1023)
        local found, _, member = find_timer(KEYS[1], job.member, holder, tries)
        if not found and has_set_aside(job.group) then return {now, 'set_aside', i - 1} end
        if job.conflict == 'fail' then return answer('conflict', i - 1, holder) end
        local due, running
        if found then due, running = read_score(found) end
        if job.conflict == 'keep' then
          job.how, job.due = 'duplicate', due
        elseif not running then
          job.how, job.holder_timer = 'replaced', member
        end
      end
    end
  end
end

if quotas then
  local keys, sizes, gone = {}, {}, {replaced_key}
  for i = 1, job_count do
    if jobs[i].how ~= 'duplicate' then
      keys[#keys + 1] = job_keys[i]
      sizes[#keys] = not staged and #jobs[i].value or nil
      if jobs[i].how == 'replaced' then gone[#gone + 1] = jobs[i].holder_key end
    end
  end
  local used_up = quotas.admit(keys, sizes, gone, staged and job_keys or {})
  if used_up then return answer('quota', used_up) end
end

-- The first write is a SET: a Redis that is full refuses it, and with it the whole call.
local elements_of, timers, placed = {}, {}, {}
for i = 1, job_count do
  local job = jobs[i]
  local id = job.id
  if job.how == 'duplicate' then
    id = job.elsewhere or job.holder
    if staged then call('UNLINK', job_keys[i]) end
  else
    if job.ttl == '0' and job.key ~= '' then job.ttl = ARGV[8] end
    if not staged then
      if job.ttl == '0' then call('SET', job_keys[i], job.value)
      else call('SET', job_keys[i], job.value, 'PX', job.ttl) end
    elseif job.ttl == '0' then call('PERSIST', job_keys[i])
    else call('PEXPIRE', job_keys[i], job.ttl) end
    local element = struct.pack('<HH', job.tries, #id) .. id
    job.due = job.at and place(job, element) or now + job.delay
    if job.due > now then
      job.due = job.due + job.due % 2
      timers[#timers + 1] = score(job.due)
      timers[#timers + 1] = job.member .. element
    else
      local elements = elements_of[job.list]
      if not elements then elements = {}; elements_of[job.list] = elements end
      elements[#elements + 1] = element
    end
  end
  local gone = job.how ~= 'duplicate' and (job.elsewhere or job.how == 'replaced' and job.holder)
  placed[i] = string.format('%s %s %s %s', gone and 'replaced' or job.how or 'new', id,
    job.due and string.format('%.0f', job.due) or '', gone or '')
end
if #timers > 0 then call('ZADD', KEYS[1], unpack(timers)) end
for list = 1, list_count do
  if elements_of[list] then call('LPUSH', KEYS[2 + list], unpack(elements_of[list])) end
end
for i = 1, job_count do
  local job = jobs[i]
  if job.key ~= '' and job.how ~= 'duplicate' then
    if job.how == 'replaced' then
      call('DEL', job.holder_key)
      if job.holder_timer then call('ZREM', KEYS[1], job.holder_timer) end
    end
    -- Whoever had the key before and is there still has it no more.
    if job.holder then call('HDEL', job.holder_details, 'key', 'tries', 'until') end
    call('SET', job.record, job.id)
    local ends = string.format('%.0f', math.floor(now / 1000) + job.ttl)
    call('PEXPIREAT', job_keys[i], ends)
    add_details(KEYS[2], bases, job.group .. '/' .. job.id, 'key', job.key, 'tries', job.tries, 'until', ends)
  end
end
if replaced_key then
  local there = call('DEL', replaced_key) == 1
  if (ARGV[5] == '' or call('ZREM', KEYS[1], ARGV[5]) == 0) and there then forget_timers(KEYS[1], {replaced_key}) end
end
local outcome = table.concat(placed, '\n')
if record then call('SET', record, fingerprint .. outcome, 'PX', ARGV[7]) end
local arg = 11 + 2 * list_count + 9 * job_count
for name = first_name, #KEYS, 3 do
  redis.pcall('HSET', KEYS[name], ARGV[arg + 1], 1)
  redis.pcall('HSET', KEYS[name + 1], ARGV[arg + 2], 1)
  -- An index is there once somebody has listed the queues of a namespace.
  if call('EXISTS', KEYS[name + 2]) == 1 then redis.pcall('ZADD', KEYS[name + 2], 0, ARGV[arg + 2]) end
  arg = arg + 2
end
return {now, 'done', outcome}
