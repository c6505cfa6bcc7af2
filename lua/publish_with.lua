-- Stores jobs with keys, jobs due at an instant, and publishes with an idempotency key: everything, or nothing. A job
-- holds its key while it has the expiry set at publish: a dead job has none or another, a respawned one has another,
-- and a job with a key that lives forever gets a very distant one. So the key becomes free in the step that deletes or
-- kills the job, even one by lmstfy's servers.
-- KEYS    timer_set | ready lists | job keys | key of the replaced job, if any | per new queue: hash of namespaces,
--         hash of queues, their index | list of jobs with details | record of the publish, if it has an idempotency key
-- ARGV    a table packed by cmsgpack (nil fields are absent), per job its value unless stage.lua has stored it. The
--         table:
--         lists: per ready list its queue's namespace and name, prefix of its timer members, and new = 1 for a new
--         queue
--         jobs: per job its list, ttl in ms (0 = forever), delay in us, at, its due time in us (nil = after the delay),
--         tries, id, key (nil = none), and conflict, the action if the key is taken: keep, replace or fail; or, if a
--         job in another store holds it, the outcome: duplicate or replaced, with that job's id as other and its due
--         time in us as other_due. The delays, and the fractions of a millisecond of the due times, preserve the order
--         of jobs of one call that are due together
--         staged = 1: stage.lua has stored the values of all jobs; replaced: timer member of the replaced job, if any
--         ('' = unknown); fingerprint, if there is an idempotency key; remembered: ms to keep the record; forever: ms
--         that represent forever
-- returns {now, 'done', outcome of the jobs, {per timer deleted: its job's key, its score ('' = of a running job)}} or
--         {now, 'replay', outcome}: a line for each of new|duplicate|replaced, id, due time in us ('' = unknown), id of
--         the replaced job; {now, 'mismatch'}; {now, 'conflict', job from 0, id of the job that
--         holds its key}; {now, 'taken'}: an id exists already; {now, 'ended'}: a staged value has expired; {now,
--         'type'}: a key has the wrong type; {now, 'set_aside', job from 0}: jobs of its queue set aside by a destroy
--         must be deleted first, and staged values stay; {now, 'quota', 1 jobs, 2 bytes or 3 queues}. Nothing has
--         changed except for 'done'.
-- bound   64 jobs, and 1 MiB of values or one value (the caller's); 33 timers for each queue and due time, 1,024 names
--         of timers of the replaced job
local args = cmsgpack.unpack(ARGV[1])
local lists, jobs, staged = args.lists, args.jobs, args.staged
local names, record, with_details, job_keys = 2 + #lists + #jobs, nil, KEYS[#KEYS], {}
local replaced_key = args.replaced and KEYS[names]
if args.replaced then names = names + 1 end
if args.fingerprint then record, with_details = KEYS[#KEYS], KEYS[#KEYS - 1] end
for i, job in ipairs(jobs) do
  local list = lists[job.list]
  job.group, job.member, job.value = list.namespace .. '/' .. list.name, list.prefix, ARGV[1 + i]
  job_keys[i] = KEYS[1 + #lists + i]
end

-- Replies without a change: deletes staged values.
local function answer(...)
  if staged then call('UNLINK', unpack(job_keys)) end
  return {now, ...}
end

local done = record and call('GET', record)
if done then
  if string.sub(done, 1, 16) ~= args.fingerprint then return answer('mismatch') end
  return answer('replay', string.sub(done, 17))
end
local stored = call('EXISTS', unpack(job_keys))
if staged and stored < #jobs then return answer('ended') end
if not staged and stored > 0 then return {now, 'taken'} end
for i = 0, 1 + #lists do
  local type = call('TYPE', i == 0 and with_details or KEYS[i]).ok
  if type ~= 'none' and type ~= (i == 1 and 'zset' or 'list') then return answer('type') end
end

-- Due time of a job that is due at an instant: after all jobs of its queue due in the same millisecond, whichever
-- server published them. It shares the score of the last of them if its member sorts after it; otherwise it is due two
-- microseconds later. So 500 jobs can be out of order; further ones are ordered by tries and id.
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
      -- None of the last 32 is its queue's: a place after the 32nd is after all of its queue's jobs.
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
for i, job in ipairs(jobs) do
  if job.key then
    job.record = key_base .. job.group .. '/' .. job.key
    if job.conflict == 'duplicate' then job.how, job.due = 'duplicate', job.other_due end
    local holder = not job.how and call('GET', job.record)
    if holder then
      job.holder = holder
      job.holder_key = job_base .. job.group .. '/' .. holder
      job.holder_details = details_base .. job.group .. '/' .. holder
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
          job.how, job.holder_timer, job.holder_score = 'replaced', member, found
        end
      end
    end
  end
end

if quotas then
  local keys, sizes, gone = {}, {}, {replaced_key}
  for i, job in ipairs(jobs) do
    if job.how ~= 'duplicate' then
      keys[#keys + 1] = job_keys[i]
      sizes[#keys] = not staged and #job.value or nil
      if job.how == 'replaced' then gone[#gone + 1] = job.holder_key end
    end
  end
  local used_up = quotas.admit(keys, sizes, gone, staged and job_keys or {})
  -- A call that stores no job still stores its record, for which quota must be left.
  if record and #keys == 0 then used_up = quotas.admit_record(lists[1].namespace) end
  if used_up then return answer('quota', used_up) end
end

-- The first write is a SET: a full Redis refuses it, and with it the whole call.
local elements_of, timers, placed, gone = {}, {}, {}, {}
for i, job in ipairs(jobs) do
  local id = job.id
  if job.how == 'duplicate' then
    id = job.other or job.holder
    if staged then call('UNLINK', job_keys[i]) end
  else
    if job.ttl == 0 and job.key then job.ttl = args.forever end
    if not staged then
      if job.ttl == 0 then call('SET', job_keys[i], job.value)
      else call('SET', job_keys[i], job.value, 'PX', job.ttl) end
    elseif job.ttl == 0 then call('PERSIST', job_keys[i])
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
  local gone = job.how ~= 'duplicate' and (job.other or job.how == 'replaced' and job.holder)
  placed[i] = string.format('%s %s %s %s', gone and 'replaced' or job.how or 'new', id,
    job.due and string.format('%.0f', job.due) or '', gone or '')
end
if #timers > 0 then call('ZADD', KEYS[1], unpack(timers)) end
for list = 1, #lists do
  if elements_of[list] then call('LPUSH', KEYS[1 + list], unpack(elements_of[list])) end
end
for i, job in ipairs(jobs) do
  if job.key and job.how ~= 'duplicate' then
    if job.how == 'replaced' then
      call('DEL', job.holder_key)
      if job.holder_timer then
        call('ZREM', KEYS[1], job.holder_timer)
        gone[#gone + 1], gone[#gone + 2] = job.holder_key, job.holder_score
      end
    end
    -- The previous holder, if it still exists, loses the key.
    if job.holder then call('HDEL', job.holder_details, 'key', 'tries', 'until') end
    call('SET', job.record, job.id)
    local ends = string.format('%.0f', math.floor(now / 1000) + job.ttl)
    call('PEXPIREAT', job_keys[i], ends)
    add_details(with_details, job.group .. '/' .. job.id, 'key', job.key, 'tries', job.tries, 'until', ends)
  end
end
if replaced_key then
  local there = call('DEL', replaced_key) == 1
  if args.replaced ~= '' and call('ZREM', KEYS[1], args.replaced) == 1 then
    gone[#gone + 1], gone[#gone + 2] = replaced_key, ''
  elseif there then
    forget_timers(KEYS[1], {replaced_key}, gone, true)
  end
end
local outcome = table.concat(placed, '\n')
if record then call('SET', record, args.fingerprint .. outcome, 'PX', args.remembered) end
for _, list in ipairs(lists) do
  if list.new then
    redis.pcall('HSET', KEYS[names], list.namespace, 1)
    redis.pcall('HSET', KEYS[names + 1], list.name, 1)
    -- An index exists once the queues of a namespace have been listed.
    if call('EXISTS', KEYS[names + 2]) == 1 then redis.pcall('ZADD', KEYS[names + 2], 0, list.name) end
    names = names + 3
  end
end
return {now, 'done', outcome, gone}
